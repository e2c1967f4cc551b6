"""Native CPU handlers for functions compiled by Numba. Requires the extra ``xlakernel-core[native]``."""

from ..errors import MissingDependencyError as _MissingDependencyError

try:
    import numba as _numba  # noqa: F401
except ImportError as error:
    from xlakernel.command.install import install_command as _install_command

    raise _MissingDependencyError(
        f"xlakernel.core.native needs Numba, which cannot be imported: {error}. "
        f"Install it with {_install_command('core', 'native')}."
    ) from error
