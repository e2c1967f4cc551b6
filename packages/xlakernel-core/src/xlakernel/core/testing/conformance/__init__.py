"""Tests of a backend, as a class. Needs the extra ``xlakernel-core[testing]``."""

from ...errors import MissingDependencyError as _MissingDependencyError

try:
    import pytest as _pytest  # noqa: F401, PT013 - a private name
except ImportError as error:
    from xlakernel.command.install import install_command as _install_command

    raise _MissingDependencyError(
        f"xlakernel.core.testing.conformance needs pytest, which cannot be imported: {error}. Install it with "
        f"`{_install_command('core', 'testing')}`."
    ) from error

from ._cases import CASES as CASES
from ._cases import Case as Case
from ._suite import KernelConformance as KernelConformance

__all__ = ["CASES", "Case", "KernelConformance"]
