"""The call of a kernel: bound, batched, sharded, differentiated and lowered."""

from .native import VMAP_METHODS as VMAP_METHODS
from .native import Kernel as Kernel
from .native import NativeCall as NativeCall
from .native import Target as Target
from .native import native_call as native_call
