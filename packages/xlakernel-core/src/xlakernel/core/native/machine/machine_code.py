"""From the LLVM IR of a module to machine code, which a later process reads from disk (`code_files`).

LLVM takes 100 ms and more for a handler; reading its code again takes 5. The IR is emitted in each process, and code on
disk is taken only where it was made from the very same text, by the same compiler with the same options (`_maker`).
The text must therefore be the same in each process. So it holds no address: `pointer_to` loads an address from a
variable of the module, which is set as soon as the code is there. And it holds no name that is unique in a process:
what others call in the module begins with `NAME`, which is replaced by a name that has the digest of the text.
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
from ..interrupts import uninterrupted
from .frame import I64, POINTER, i64

#: How the names of a module's functions begin that are called from outside of it.
NAME = "xlakernel_code"
_BIND = "_bind"

# The addresses that the code of a module refers to, each with the name of its variable.
_addresses: weakref.WeakKeyDictionary[ir.Module, dict[int, str]] = weakref.WeakKeyDictionary()
# Modules loaded so far, by the digest of their text: those of closures of one function differ in addresses alone.
_loaded: collections.Counter[str] = collections.Counter()


@dataclasses.dataclass(frozen=True)
class MachineCode:
    """A module that can be called; it lives as long as this object.

    Attributes:
      library: Numba's, which owns the code.
      name: what stands for `NAME` in it.
    """

    library: Any
    name: str

    def address_of(self, function: str) -> int:
        """Return the address of the function that the module calls *function*."""
        return int(self.library.get_pointer_to_function(function.replace(NAME, self.name, 1)))


def pointer_to(builder: ir.IRBuilder, address: int, kind: ir.Type = POINTER) -> Any:
    """Return *address*, which may be another one in each process, as a pointer of type *kind*.

    It is null in a module that does not come to life by `load_module`.
    """
    module = builder.module
    names = _addresses.setdefault(module, {})
    if address not in names:
        names[address] = f"xlakernel_address_{len(names)}"
        variable = cgutils.add_global_variable(module, I64, names[address])
        variable.linkage, variable.initializer = "internal", i64(0)
    return builder.inttoptr(builder.load(module.globals[names[address]]), kind)


def load_module(codegen: Any, module: ir.Module, *, keep: bool) -> MachineCode:
    """Return the machine code of a module, with its addresses in place. Numba's compiler lock is to be held.

    Args:
      codegen: Numba's, whose memory the code goes to.
      module: what to compile; nothing is to be added to it any more.
      keep: whether to keep the machine code on disk for later processes.
    """
    addresses = list(_addresses.get(module, {}))
    _emit_bind(module)
    text = cgutils.normalize_ir_text(str(module))
    name = _new_name(text)
    text = text.replace(f'@"{NAME}', f'@"{name}')
    fingerprint = hashlib.sha256("\n".join((*compiler_facts(codegen), text)).encode()).hexdigest()
    object_code = read_code(fingerprint) if keep else None
    if object_code is None:
        with uninterrupted():  # llvmlite frees a module twice if it is interrupted while it hands it on
            library = _compile(codegen, text, name, keep=keep)
        if keep:
            write_code(fingerprint, object_code_of(library))
    else:
        symbols = [function.name for function in module.functions if _is_defined(function)]
        with uninterrupted():
            library = load_object_code(codegen, name, object_code, [s.replace(NAME, name, 1) for s in symbols])
    code = MachineCode(library, name)
    bind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address_of(f"{NAME}{_BIND}"))
    bind((ctypes.c_int64 * len(addresses))(*addresses))
    return code


def object_code_of(library: Any) -> bytes:
    """Return the object code of one of Numba's libraries that object caching is enabled for."""
    _, _, (object_code, _) = library.serialize_using_object_code()
    return bytes(object_code)


def load_object_code(codegen: Any, name: str, object_code: bytes, symbols: Sequence[str]) -> Any:
    """Return a library of Numba's that has been compiled.

    Args:
      codegen: Numba's, whose memory the code goes to.
      name: a name for the library.
      object_code: what `object_code_of` returned.
      symbols: the functions to be found by name.
    """
    # Numba takes the names from the bitcode that it keeps beside the object code, to link it into other libraries. A
    # module with these names and empty functions does as well.
    stubs = "\n".join(f'define void @"{symbol}"() {{ ret void }}' for symbol in symbols)
    bitcode = llvm.parse_assembly(stubs).as_bitcode()
    return codegen.unserialize_library((name, "object", (object_code, bitcode)))


def compiler_facts(codegen: Any) -> tuple[str, ...]:
    """Return what tells machine code apart that was made from one text: the processor, the compiler, its options."""
    config = numba.config
    options = (str(config.OPT), config.LOOP_VECTORIZE, config.SLP_VECTORIZE)
    return tuple(map(repr, (codegen.magic_tuple(), numba.__version__, llvmlite.__version__, options)))


def _is_defined(function: ir.Function) -> bool:
    return not function.is_declaration and function.linkage not in ("internal", "private")


def _emit_bind(module: ir.Module) -> None:
    """Emit ``bind(addresses)``, which sets the variables that `pointer_to` reads."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64.as_pointer()]), f"{NAME}{_BIND}")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    for number, variable in enumerate(_addresses.get(module, {}).values()):
        builder.store(builder.load(builder.gep(function.args[0], [i64(number)])), module.globals[variable])
    builder.ret_void()


def _new_name(text: str) -> str:
    """Return a name that no other module in this process has, and that this one has in most processes."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    _loaded[digest] += 1
    return f"{NAME}_{digest}_{_loaded[digest]}"


def _compile(codegen: Any, text: str, name: str, *, keep: bool) -> Any:
    library = codegen.create_library(name)
    if keep:  # which doubles the memory that it takes
        library.enable_object_caching()
    module = llvm.parse_assembly(text)
    module.verify()
    library.add_llvm_module(module)
    library.finalize()
    return library
