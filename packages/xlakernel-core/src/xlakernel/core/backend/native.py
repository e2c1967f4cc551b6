"""Facade of `xlakernel.core.native`, for building native handlers. Needs the extra ``xlakernel-core[native]``."""

from ..native.arguments import Argument, Slices
from ..native.callee import Callee, NumbaFunction
from ..native.compile_error import compile_error, is_of_numba
from ..native.compiler import Compiler, FunctionKind
from ..native.copies.functions import OwnCopies
from ..native.debugging.call_frame import ArrayView
from ..native.debugging.memory import HostMemory
from ..native.debugging.observer import UNCHECKED_THREADS, Observer
from ..native.declarations import Declarations
from ..native.dtypes import array_type, numba_dtype
from ..native.handler import HANDLER_VERSION, build_handler
from ..native.machine.frame import I8, I64, POINTER, Frame, i64
from ..native.machine.lock import new_lock
from ..native.machine.machine_code import compiler_facts, load_object_code, pointer_to
from ..native.pickled import (
    declare,
    declared_signatures,
    dispatcher_parts,
    dumps,
    make_dispatcher,
)
from ..native.recipe import is_importable, read_kernel, write_recipe
from ..native.threads.pool import SUPPORTED
from ..native.threads.prange import on_xla_threads

__all__ = [
    "HANDLER_VERSION",
    "I8",
    "I64",
    "POINTER",
    "SUPPORTED",
    "UNCHECKED_THREADS",
    "Argument",
    "ArrayView",
    "Callee",
    "Compiler",
    "Declarations",
    "Frame",
    "FunctionKind",
    "HostMemory",
    "NumbaFunction",
    "Observer",
    "OwnCopies",
    "Slices",
    "array_type",
    "build_handler",
    "compile_error",
    "compiler_facts",
    "declare",
    "declared_signatures",
    "dispatcher_parts",
    "dumps",
    "i64",
    "is_importable",
    "is_of_numba",
    "load_object_code",
    "make_dispatcher",
    "new_lock",
    "numba_dtype",
    "on_xla_threads",
    "pointer_to",
    "read_kernel",
    "write_recipe",
]
