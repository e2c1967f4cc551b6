"""The interface for packages that compile kernels: all that a backend's wrapper is built on.

A backend derives `Kernel`, whose ``target`` compiles and registers a handler, and returns `kernel_function` of it.
"""

from .call import VMAP_METHODS as VMAP_METHODS
from .call import Kernel as Kernel
from .call import NativeCall as NativeCall
from .call import Target as Target
from .call import native_call as native_call
from .call.declaration import Transpose as Transpose
from .call.scalars import Entry as Entry
from .call.scalars import Scalar as Scalar
from .call.scalars import plain_numbers as plain_numbers
from .call.wrapper import VmapMethod as VmapMethod
from .call.wrapper import kernel_function as kernel_function
from .operator.eager import jit_when_eager as jit_when_eager
from .specs import Struct as Struct

__all__ = [
    "VMAP_METHODS",
    "Entry",
    "Kernel",
    "NativeCall",
    "Scalar",
    "Struct",
    "Target",
    "Transpose",
    "VmapMethod",
    "jit_when_eager",
    "kernel_function",
    "native_call",
    "plain_numbers",
]
