"""Names that backends (packages that compile kernels) import in addition to xlakernel.core's public names.

A backend subclasses `Kernel`: its method ``target`` compiles a handler and registers it. The backend's wrapper returns
``kernel_function(kernel, ...)``. For handlers that Numba's compiler builds, see `backend.native`; for recordings of GPU
launches, `backend.gpu`.
"""

from xlakernel.command.install import install_command

from .. import output_init
from .._compat import is_tracing
from ..call import Kernel, Target
from ..call.aliases import checked_aliases
from ..call.derivatives.declaration import Transpose
from ..call.derivatives.multilinear import Group, TangentsByJAX, with_tangents
from ..call.outs import is_function
from ..call.scalars import Entry, Scalar, plain_numbers
from ..call.wrapper import VmapMethod, kernel_function
from ..code_files import read_code, write_code
from ..config import AUTO, PLATFORMS, is_debugging
from ..decorating import as_decorator
from ..extents import extents, resolve
from ..ffi.registry import Handler, Recipe, ensure_registered
from ..identity.fingerprint import Examination, examine, fingerprint
from ..identity.same import Same, by_identity
from ..identity.warp_kinds import code_of
from ..interrupts import is_raised_by_handler, uninterrupted
from ..missing import missing_package
from ..operator.eager import jit_when_eager
from ..output_init import OutputInit, for_each, or_zeros, patterns
from ..programs.callables import Callables
from ..programs.comparison import Compared
from ..programs.reference import Reference
from ..programs.values import (
    FORMAT,
    check_format,
    read_init,
    read_static,
    read_structs,
    write_init,
    write_static,
    write_structs,
)
from ..structs import Struct, keywords_of
from ..warning import warn

__all__ = [
    "AUTO",
    "FORMAT",
    "PLATFORMS",
    "Callables",
    "Compared",
    "Entry",
    "Examination",
    "Group",
    "Handler",
    "Kernel",
    "OutputInit",
    "Recipe",
    "Reference",
    "Same",
    "Scalar",
    "Struct",
    "TangentsByJAX",
    "Target",
    "Transpose",
    "VmapMethod",
    "as_decorator",
    "by_identity",
    "check_format",
    "checked_aliases",
    "code_of",
    "ensure_registered",
    "examine",
    "extents",
    "fingerprint",
    "for_each",
    "install_command",
    "is_debugging",
    "is_function",
    "is_raised_by_handler",
    "is_tracing",
    "jit_when_eager",
    "kernel_function",
    "keywords_of",
    "missing_package",
    "or_zeros",
    "output_init",
    "patterns",
    "plain_numbers",
    "read_code",
    "read_init",
    "read_static",
    "read_structs",
    "resolve",
    "uninterrupted",
    "warn",
    "with_tangents",
    "write_code",
    "write_init",
    "write_static",
    "write_structs",
]
