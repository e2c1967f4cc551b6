"""What is said where another of our packages is needed and not installed."""

from __future__ import annotations

from .errors import MissingDependencyError


def missing_package(asked_by: str, package: str) -> MissingDependencyError:
    """Return the error of *asked_by*, which needs the package of this name in the namespace."""
    # Only now: the command loads much that nobody else needs.
    from xlakernel.command.install import install_command

    older = " (or [cuda12], for an older driver)" * (package == "cuda")
    return MissingDependencyError(
        f"{asked_by} needs xlakernel-{package}, which is not installed. "
        f"Install it with `{install_command(package)}`{older}."
    )
