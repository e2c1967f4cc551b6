"""Launches on the GPU, recorded once and replayed by machine code. Needs the extra ``xlakernel-core[gpu]``."""

from ..errors import MissingDependencyError as _MissingDependencyError

try:
    import cuda.bindings.driver as _driver  # noqa: F401
    import numba as _numba  # noqa: F401
except ImportError as error:
    raise _MissingDependencyError(
        f"xlakernel.core.gpu needs Numba and cuda-bindings, which cannot be imported: {error}. "
        'Install them with pip install "xlakernel-core[gpu]".'
    ) from error
