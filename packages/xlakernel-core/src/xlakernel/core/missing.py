"""The error for a package of this project that is required and not installed."""

from __future__ import annotations

from .errors import MissingDependencyError


def missing_package(asked_by: str, package: str) -> MissingDependencyError:
    """Return the error for the caller *asked_by*, which requires the package ``xlakernel-<package>``."""
    # Imported here, since `xlakernel.command` imports many modules.
    from xlakernel.command.install import install_command

    older = " (or [cuda12], for an older driver)" * (package == "cuda")
    return MissingDependencyError(
        f"{asked_by} needs xlakernel-{package}, which is not installed. "
        f"Install it with `{install_command(package, 'cuda13' if package == 'cuda' else '')}`{older}."
    )
