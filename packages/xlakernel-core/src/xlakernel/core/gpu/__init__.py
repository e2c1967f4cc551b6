"""Launches on the GPU, recorded once and replayed by machine code. Needs the extra ``xlakernel-core[gpu]``."""

from ..errors import MissingDependencyError as _MissingDependencyError

try:
    import cuda.bindings.driver as _driver  # noqa: F401
    import numba as _numba  # noqa: F401
except ImportError as error:
    from xlakernel.command.install import install_command as _install_command

    raise _MissingDependencyError(
        f"xlakernel.core.gpu needs Numba and cuda-bindings, which cannot be imported: {error}. "
        f"Install them with {_install_command('core', 'gpu')}."
    ) from error
