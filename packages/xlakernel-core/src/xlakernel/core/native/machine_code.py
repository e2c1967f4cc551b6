"""From the LLVM IR of a handler to machine code, which a later process reads from disk.

LLVM takes 100 ms and more for a handler; reading its code again takes 5. The IR is emitted in each process, and the
code on disk is taken only where it was made from the very same text: what decides over it cannot be forgotten in a key.
For that the text must be the same in each process. So it holds no address: `pointer_to` loads an address from a
variable of the module, which is set as soon as the code is there.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import pickle
import uuid
import weakref
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import cgutils

from .frame import I64, POINTER, i64

_DIGEST = hashlib.sha256
_DIGEST_SIZE = _DIGEST().digest_size

# The addresses that the code of a module refers to, each with the name of its variable.
_addresses: weakref.WeakKeyDictionary[ir.Module, dict[int, str]] = weakref.WeakKeyDictionary()


def pointer_to(builder: ir.IRBuilder, address: int, kind: ir.Type = POINTER) -> Any:
    """Return *address*, which may be another one in each process, as a pointer of type *kind*."""
    module = builder.module
    names = _addresses.setdefault(module, {})
    if address not in names:
        names[address] = f"xlakernel_address_{len(names)}"
        variable = cgutils.add_global_variable(module, I64, names[address])
        variable.linkage, variable.initializer = "internal", i64(0)
    return builder.inttoptr(builder.load(module.globals[names[address]]), kind)


def load_module(codegen: Any, module: ir.Module, symbol: str, folder: Path | None) -> Any:
    """Return a Numba library of the module's machine code, ready to be called.

    Args:
      codegen: Numba's, whose memory the code goes to.
      module: what to compile. It is not to be changed any more.
      symbol: a name that nothing else in this process has, and that the module has in each process.
      folder: where the machine code is kept, where that can be written; None: nowhere.
    """
    bind = f"{symbol}_bind"
    _emit_bind(module, bind)
    text = cgutils.normalize_ir_text(str(module))
    library = None
    if folder is not None:
        file, source = folder / f"{symbol}.{_machine(codegen)}.xlakernel.nbc", _DIGEST(text.encode()).digest()
        if (stored := _read(file, source)) is not None:
            library = codegen.unserialize_library(stored)
    if library is None:
        library = _compile(codegen, text, symbol)
        if folder is not None:
            _write(file, source, library.serialize_using_object_code())
    addresses = list(_addresses.pop(module, {}))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.get_pointer_to_function(bind))
    function((ctypes.c_int64 * len(addresses))(*addresses))
    return library


def _emit_bind(module: ir.Module, name: str) -> None:
    """Emit ``bind(addresses)``, which sets the variables that `pointer_to` reads."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64.as_pointer()]), name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    for number, variable in enumerate(_addresses.get(module, {}).values()):
        builder.store(builder.load(builder.gep(function.args[0], [i64(number)])), module.globals[variable])
    builder.ret_void()


def _compile(codegen: Any, text: str, symbol: str) -> Any:
    library = codegen.create_library(symbol)
    library.enable_object_caching()
    module = llvm.parse_assembly(text)
    module.verify()
    library.add_llvm_module(module)
    library.finalize()
    return library


@functools.cache
def _machine(codegen: Any) -> str:
    """Return what tells machine code apart that the same text gives: the processor, and who compiled it."""
    made_by = (codegen.magic_tuple(), numba.__version__, llvmlite.__version__)
    return _DIGEST(repr(made_by).encode()).hexdigest()[:8]


# A file: the digest of the text that it was made from, that of what follows, and what Numba makes a library from.


def _read(file: Path, source: bytes) -> Any:
    """Return what was stored, or None where it is not there, not made from *source*, or not what was written."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    stored = content[2 * _DIGEST_SIZE :]
    return pickle.loads(stored) if content.startswith(source + _DIGEST(stored).digest()) else None


def _write(file: Path, source: bytes, library: Any) -> None:
    """Store a serialized library, where the folder can be written; other processes see all of it or nothing."""
    stored = pickle.dumps(library)
    temporary = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(source + _DIGEST(stored).digest() + stored)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
