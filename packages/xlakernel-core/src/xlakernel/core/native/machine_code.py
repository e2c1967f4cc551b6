"""From the LLVM IR of a module to machine code, which a later process reads from disk.

LLVM takes 100 ms and more for a handler; reading its code again takes 5. The IR is emitted in each process, and code on
disk is taken only where it was made from the very same text, by the same compiler with the same options (`_maker`).
The text must therefore be the same in each process. So it holds no address: `pointer_to` loads an address from a
variable of the module, which is set as soon as the code is there. And it holds no name that is unique in a process:
what others call in the module begins with `NAME`, which is replaced by a name that has the digest of the text.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import hashlib
import pickle
import weakref
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import cgutils

from ..cache_folder import replace_file
from .frame import I64, POINTER, i64

#: How the names of a module's functions begin that are called from outside of it.
NAME = "xlakernel_code"
_BIND = "_bind"

_DIGEST = hashlib.sha256
_DIGEST_SIZE = _DIGEST().digest_size

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


def load_module(codegen: Any, module: ir.Module, folder: Path | None) -> MachineCode:
    """Return the machine code of a module, with its addresses in place. Numba's compiler lock is to be held.

    Args:
      codegen: Numba's, whose memory the code goes to.
      module: what to compile; nothing is to be added to it any more.
      folder: where machine code is kept, if that can be written; None: nowhere.
    """
    addresses = list(_addresses.get(module, {}))
    _emit_bind(module)
    text = cgutils.normalize_ir_text(str(module))
    name = _new_name(text)
    text = text.replace(f'@"{NAME}', f'@"{name}')
    file = None if folder is None else folder / f"{name}.{_maker(codegen)}.xlakernel.nbc"
    library = None if file is None else _read(codegen, file, text)
    if library is None:
        library = _compile(codegen, text, name, keep=file is not None)
        if file is not None:
            _write(library, file, text)
    code = MachineCode(library, name)
    bind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address_of(f"{NAME}{_BIND}"))
    bind((ctypes.c_int64 * len(addresses))(*addresses))
    return code


def _emit_bind(module: ir.Module) -> None:
    """Emit ``bind(addresses)``, which sets the variables that `pointer_to` reads."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64.as_pointer()]), f"{NAME}{_BIND}")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    for number, variable in enumerate(_addresses.get(module, {}).values()):
        builder.store(builder.load(builder.gep(function.args[0], [i64(number)])), module.globals[variable])
    builder.ret_void()


def _new_name(text: str) -> str:
    """Return a name that no other module in this process has, and that this one has in most processes."""
    digest = _DIGEST(text.encode()).hexdigest()[:16]
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


def _maker(codegen: Any) -> str:
    """Return what tells machine code apart that was made from one text: the processor, the compiler, its options."""
    config = numba.config
    options = (str(config.OPT), config.LOOP_VECTORIZE, config.SLP_VECTORIZE)
    made_by = (codegen.magic_tuple(), numba.__version__, llvmlite.__version__, options)
    return _DIGEST(repr(made_by).encode()).hexdigest()[:8]


# A file: the digest of the text that it was made from, that of what follows, and what Numba makes a library from.


def _read(codegen: Any, file: Path, text: str) -> Any:
    """Return the library of a file, or None: there is none, of another text, or not what was written."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    stored = content[2 * _DIGEST_SIZE :]
    if not content.startswith(_head(text, stored)):
        return None
    return codegen.unserialize_library(pickle.loads(stored))


def _write(library: Any, file: Path, text: str) -> None:
    """Store a library, where the folder can be written."""
    stored = pickle.dumps(library.serialize_using_object_code())
    with contextlib.suppress(OSError):
        replace_file(file, _head(text, stored) + stored)


def _head(text: str, stored: bytes) -> bytes:
    return _DIGEST(text.encode()).digest() + _DIGEST(stored).digest()
