"""Native CPU handlers for functions compiled by Numba. Requires the extra ``xlakernel-core[native]``."""

from ..errors import MissingDependencyError as _MissingDependencyError

try:
    import numba as _numba  # noqa: F401
except ImportError as error:
    raise _MissingDependencyError(
        f"xlakernel.core.native needs Numba, which cannot be imported: {error}. "
        'Install it with pip install "xlakernel-core[native]".'
    ) from error
