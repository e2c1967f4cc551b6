"""Native CPU handlers for compiled Numba functions. Needs the extra ``xlakernel-core[native]``."""

from ..errors import MissingDependencyError as _MissingDependencyError

try:
    import numba as _numba  # noqa: F401
except ImportError as error:
    raise _MissingDependencyError(
        f"xlakernel.core.native needs Numba, which cannot be imported: {error}. "
        'Install it with pip install "xlakernel-core[native]".'
    ) from error

from .arguments import Argument as Argument
from .arguments import Slices as Slices
from .callee import Callee as Callee
from .callee import NumbaFunction as NumbaFunction
from .compile_error import compile_error as compile_error
from .compiler import Compiler as Compiler
from .compiler import Helper as Helper
from .declared import Declarations as Declarations
from .dtypes import array_type as array_type
from .dtypes import numba_dtype as numba_dtype
from .handler import HANDLER_VERSION as HANDLER_VERSION
from .handler import build_handler as build_handler
from .lock import new_lock as new_lock
from .own_copies import OwnCopies as OwnCopies
from .prange import on_xla_threads as on_xla_threads
from .recipe import is_importable as is_importable
from .recipe import read_kernel as read_kernel
from .recipe import write_recipe as write_recipe
