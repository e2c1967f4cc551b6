"""Compilation of LLVM modules to machine code, which later processes read from disk (`code_files`).

LLVM takes 100 ms and more for a handler; reading its object code takes 5 ms. The IR is emitted in each process, and
object code is reused only if it was compiled from the same text by the same compiler with the same options
(`compiler_facts`). The text must therefore be the same in each process:

* It contains no address. `pointer_to` loads each address from a variable of the module, which is set once the code is
  loaded.
* It contains no name that is unique to a process. The names of external functions begin with `NAME`, which is replaced
  by a name with the digest of the text.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import hashlib
import weakref
from collections.abc import Sequence
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import cgutils

from ...code_files import read_code, write_code
from ...interrupts import uninterrupted
from .frame import I64, POINTER, VOID, i64

#: Prefix of the names of a module's external functions.
NAME = "xlakernel_code"
_BIND = "_bind"

# The addresses that the code of a module refers to, each with the name of its variable.
_addresses: weakref.WeakKeyDictionary[ir.Module, dict[int, str]] = weakref.WeakKeyDictionary()
# Number of loaded modules by the digest of their text: closures of one function have modules with the same text.
_loaded: collections.Counter[str] = collections.Counter()


@dataclasses.dataclass(frozen=True)
class MachineCode:
    """The machine code of a module, which lives as long as this object.

    Attributes:
      library: Numba's library, which owns the code.
      name: the replacement of `NAME` in the code.
    """

    library: Any
    name: str

    def address_of(self, function: str) -> int:
        """Return the address of a function by its name in the module."""
        return int(self.library.get_pointer_to_function(function.replace(NAME, self.name, 1)))


def new_module(context: Any) -> ir.Module:
    """Return a new module of a Numba context, for `load_module`."""
    module = context.create_module(NAME)
    _addresses[module] = {}
    return module


def new_function(
    module: ir.Module, name: str, kind: ir.FunctionType, linkage: str = "internal"
) -> tuple[ir.Function, ir.IRBuilder]:
    """Return a new function ``<NAME>_<name>`` of the module, or ``<NAME>`` if *name* is empty, and its builder."""
    function = ir.Function(module, kind, f"{NAME}_{name}" if name else NAME)
    function.linkage = linkage
    # Most of this code is straight loads: optimising for size halves the compile time and costs no run time.
    function.attributes.add("optsize")
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def pointer_to(builder: ir.IRBuilder, address: int, kind: ir.Type = POINTER) -> Any:
    """Return an address of this process as a pointer of type *kind*.

    In a module made by `new_module`, the pointer is loaded from a variable. In any other module, which is never stored
    on disk, the pointer is a constant.
    """
    module = builder.module
    names = _addresses.get(module)
    if names is None:
        return builder.inttoptr(i64(address), kind)
    if address not in names:
        names[address] = f"xlakernel_address_{len(names)}"
        variable = cgutils.add_global_variable(module, I64, names[address])
        variable.linkage, variable.initializer = "internal", i64(0)
    return builder.inttoptr(builder.load(module.globals[names[address]]), kind)


def load_module(codegen: Any, module: ir.Module, *, keep: bool) -> MachineCode:
    """Return the machine code of a complete module, with its addresses set. Numba's compiler lock must be held.

    Args:
      codegen: Numba's code generator, which owns the memory of the code.
      module: a module made by `new_module`.
      keep: whether to store the machine code on disk for later processes.
    """
    addresses = list(_addresses[module])
    _emit_bind(module)
    text = cgutils.normalize_ir_text(str(module))
    name = _new_name(text)
    text = text.replace(f'@"{NAME}', f'@"{name}')
    fingerprint = hashlib.sha256("\n".join((*compiler_facts(codegen), text)).encode()).hexdigest()
    object_code = read_code(fingerprint) if keep else None
    # An interrupt in either branch would make llvmlite free a module twice.
    if object_code is None:
        with uninterrupted():
            library = _compile(codegen, text, name, keep=keep)
        if keep:
            write_code(fingerprint, object_code_of(library))
    else:
        symbols = [function.name.replace(NAME, name, 1) for function in module.functions if _is_external(function)]
        with uninterrupted():
            library = load_object_code(codegen, name, object_code, symbols)
    code = MachineCode(library, name)
    bind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address_of(f"{NAME}{_BIND}"))
    bind((ctypes.c_int64 * len(addresses))(*addresses))
    return code


def object_code_of(library: Any) -> bytes:
    """Return the object code of a Numba library with object caching enabled."""
    _, _, (object_code, _) = library.serialize_using_object_code()
    return bytes(object_code)


def load_object_code(codegen: Any, name: str, object_code: bytes, symbols: Sequence[str]) -> Any:
    """Return a Numba library with the given machine code.

    Args:
      codegen: Numba's code generator, which owns the memory of the code.
      name: a name for the library.
      object_code: the result of `object_code_of`.
      symbols: the functions that the library can look up by name.
    """
    # Numba reads the names from the bitcode that it stores beside the object code, for linking into other libraries.
    # Empty functions with these names are sufficient.
    stubs = "\n".join(f'define void @"{symbol}"() {{ ret void }}' for symbol in symbols)
    bitcode = llvm.parse_assembly(stubs).as_bitcode()
    return codegen.unserialize_library((name, "object", (object_code, bitcode)))


def compiler_facts(codegen: Any) -> tuple[str, ...]:
    """Return all that determines the machine code of a given text: the processor, the compiler and its options."""
    config = numba.config
    options = (str(config.OPT), config.LOOP_VECTORIZE, config.SLP_VECTORIZE)
    return tuple(map(repr, (codegen.magic_tuple(), numba.__version__, llvmlite.__version__, options)))


def _is_external(function: ir.Function) -> bool:
    return not function.is_declaration and function.linkage not in ("internal", "private")


def _emit_bind(module: ir.Module) -> None:
    """Emit ``bind(addresses)``, which sets the variables that `pointer_to` reads."""
    function = ir.Function(module, ir.FunctionType(VOID, [I64.as_pointer()]), f"{NAME}{_BIND}")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    for number, variable in enumerate(_addresses[module].values()):
        builder.store(builder.load(builder.gep(function.args[0], [i64(number)])), module.globals[variable])
    builder.ret_void()


def _new_name(text: str) -> str:
    """Return a name that is unique in this process, and usually the same in all processes."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    _loaded[digest] += 1
    return f"{NAME}_{digest}_{_loaded[digest]}"


def _compile(codegen: Any, text: str, name: str, *, keep: bool) -> Any:
    library = codegen.create_library(name)
    if keep:  # doubles the memory of the library
        library.enable_object_caching()
    module = llvm.parse_assembly(text)
    module.verify()
    library.add_llvm_module(module)
    library.finalize()
    return library
