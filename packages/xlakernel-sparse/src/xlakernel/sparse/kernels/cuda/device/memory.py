"""Accesses to global memory that Numba does not offer: loads of four elements, reductions, and ordered accesses.

The functions do not check indices, and negative indices do not count from the end.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.cuda import cgutils, config
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.extending import intrinsic

from .code import asm, integer, is_half, loaded_type, pointer_to, widened

#: The lowest major compute capability of GPUs that add four floats at once; PTX has the instruction from CUDA 12.1 on.
ADDS_FOUR = 9
#: The lowest major compute capability of GPUs that load any number of bytes into L2 by one instruction.
_PREFETCHES = 9

#: The alignment of 16-byte loads.
ALIGNMENT = 16


def _unpacked(context: Any, builder: Any, dtype: Any, memory: Any, place: int) -> Any:
    """Return an element of *memory*, a copy on the stack; LLVM promotes the copy to registers."""
    at = builder.gep(memory, [ir.Constant(integer(32), 0), ir.Constant(integer(32), place)])
    return widened(builder, dtype, builder.load(at)) if is_half(dtype) else context.unpack_value(builder, dtype, at)


def _copy(builder: Any, pointer: Any, words: Any, count: int, wanted: Any) -> None:
    """Copy *count* 32-bit words to *words* by loads of up to 16 bytes; write zeros if the predicate *wanted* is false.

    If *wanted* is None, all words are copied. ``ld.global.nc.L1::no_allocate`` loads by the read-only path, and leaves
    L1 to the operand. The predicate is a register of the asm block, so that the loads need no branch.
    """
    width = min(count, 4)
    names = ", ".join(f"${i}" for i in range(width))
    target, suffix = (names, "") if width == 1 else (f"{{{names}}}", f".v{width}")
    load = f"ld.global.nc.L1::no_allocate{suffix}.b32 {target}, [${width}];"
    if wanted is not None:
        zeros = " ".join(f"mov.b32 ${i}, 0;" for i in range(width))
        load = f"{{ .reg .pred p; setp.ne.b32 p, ${width + 1}, 0; {zeros} @p {load} }}"
    # "&": an output that is written before the address is read must not share the address's register.
    mark = "=r" if wanted is None else "=&r"
    constraints = ",".join([mark] * width + ["l"] + (["r"] if wanted is not None else []))
    result = integer(32) if width == 1 else ir.LiteralStructType([integer(32)] * width)
    for first in range(0, count, width):
        args = [builder.gep(pointer, [ir.Constant(integer(32), 4 * first)])] + ([wanted] if wanted is not None else [])
        got = asm(builder, result, load, constraints, args)
        for i in range(width):
            word = got if width == 1 else builder.extract_value(got, i)
            builder.store(word, builder.gep(words, [ir.Constant(integer(32), first + i)]))


def _load_four(context: Any, builder: Any, signature: Any, array: Any, index: Any, wanted: Any = None) -> Any:
    array_type, index_type = signature.args[:2]
    dtype = array_type.dtype
    element = integer(16) if is_half(dtype) else context.get_data_type(dtype)
    memory = cgutils.alloca_once(builder, ir.ArrayType(element, 4))
    memory.align = ALIGNMENT
    size = 2 if is_half(dtype) else context.get_abi_sizeof(element)
    pointer = pointer_to(context, builder, array_type, array, index_type, index)
    _copy(builder, pointer, builder.bitcast(memory, integer(32).as_pointer()), size, wanted)
    values = [_unpacked(context, builder, dtype, memory, i) for i in range(4)]
    return context.make_tuple(builder, signature.return_type, values)


@intrinsic
def load4(_: Any, array: Any, index: Any) -> Any:
    """Return ``array[index : index + 4]`` as a tuple, without an allocation in L1; *index* is a multiple of four."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _load_four(context, builder, signature, *args)

    return types.UniTuple(loaded_type(array.dtype), 4)(array, index), codegen


@intrinsic
def load4_if(_: Any, wanted: Any, array: Any, index: Any) -> Any:
    """Return `load4` if *wanted*, else zeros without an access. There is no branch, so that several loads overlap."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flag = builder.zext(context.cast(builder, args[0], signature.args[0], types.boolean), integer(32))
        inner = signature.return_type(*signature.args[1:])
        return _load_four(context, builder, inner, args[1], args[2], flag)

    return types.UniTuple(loaded_type(array.dtype), 4)(wanted, array, index), codegen


def _load_one(context: Any, builder: Any, signature: Any, array: Any, index: Any, wanted: Any = None) -> Any:
    array_type, index_type = signature.args[:2]
    dtype = array_type.dtype
    pointer = pointer_to(context, builder, array_type, array, index_type, index)
    element = integer(16) if is_half(dtype) else context.get_data_type(dtype)
    size = 2 if is_half(dtype) else context.get_abi_sizeof(element)
    memory = cgutils.alloca_once(builder, ir.ArrayType(element, 1))
    bits, name, mark = _UNITS.get(size, _UNITS[8])
    unit = integer(bits)
    load = f"ld.global.nc.{name} $0, [$1];"
    if wanted is not None:
        move = f"mov.{'b16' if size < 4 else name} $0, 0;"
        load = f"{{ .reg .pred p; setp.ne.b32 p, $2, 0; {move} @p {load} }}"
    constraints = f"={mark},l" if wanted is None else f"=&{mark},l,r"
    for first in range(0, size, 8):
        at = builder.gep(pointer, [ir.Constant(integer(32), first)])
        got = asm(builder, unit, load, constraints, [at] if wanted is None else [at, wanted])
        got = builder.trunc(got, integer(8)) if size == 1 else got
        place = builder.gep(builder.bitcast(memory, integer(8).as_pointer()), [ir.Constant(integer(32), first)])
        builder.store(got, builder.bitcast(place, got.type.as_pointer()))
    return _unpacked(context, builder, dtype, memory, 0)


# For each size of an element in bytes: the bits of a register, the suffix of the load instruction, and the asm
# constraint of the register. Larger elements are loaded eight bytes at a time.
_UNITS = {1: (16, "u8", "h"), 2: (16, "b16", "h"), 4: (32, "b32", "r"), 8: (64, "b64", "l")}


@intrinsic
def load(_: Any, array: Any, index: Any) -> Any:
    """Return ``array[index]`` of an input, through the read-only path and L1."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _load_one(context, builder, signature, *args)

    return loaded_type(array.dtype)(array, index), codegen


@intrinsic
def load_if(_: Any, wanted: Any, array: Any, index: Any) -> Any:
    """Return `load` if *wanted*, else zero without an access."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flag = builder.zext(context.cast(builder, args[0], signature.args[0], types.boolean), integer(32))
        inner = signature.return_type(*signature.args[1:])
        return _load_one(context, builder, inner, args[1], args[2], flag)

    return loaded_type(array.dtype)(wanted, array, index), codegen


def _is_aligned(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    address = builder.ptrtoint(pointer_to(context, builder, signature.args[0], args[0]), integer(64))
    low = builder.and_(address, ir.Constant(integer(64), ALIGNMENT - 1))
    return builder.icmp_unsigned("==", low, ir.Constant(integer(64), 0))


@intrinsic
def is_aligned(_: Any, array: Any) -> Any:
    """Return True if the array is aligned for `load4` and `add4_to`; a slice of a batch may be unaligned."""
    return types.boolean(array), _is_aligned


@intrinsic
def add_to(_: Any, array: Any, index: Any, value: Any) -> Any:
    """Add *value* to ``array[index]`` atomically, by a reduction without a result; complex numbers, part by part.

    The elements are integers of 32 or 64 bits, floats of these sizes, or complex.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, index_type, value_type = signature.args
        dtype = array_type.dtype
        pointer = pointer_to(context, builder, array_type, args[0], index_type, args[1])
        value = context.cast(builder, args[2], value_type, dtype)
        if isinstance(dtype, types.Complex):
            number = context.make_complex(builder, dtype, value=value)
            parts, part = [number.real, number.imag], dtype.underlying_float
        else:
            parts, part = [value], dtype
        name, mark = _REDUCTIONS[type(part) is types.Float, part.bitwidth]
        for i, one in enumerate(parts):
            at = builder.gep(pointer, [ir.Constant(integer(32), i * part.bitwidth // 8)])
            asm(builder, ir.VoidType(), f"red.global.add.{name} [$0], $1;", f"l,{mark}", [at, one], effect=True)
        return context.get_dummy_value()

    return types.void(array, index, value), codegen


def _has_compute_capability(major: int) -> bool:
    """Return True if the GPU that a kernel is compiled for has this major compute capability, or a later one."""
    forced = config.FORCE_CUDA_CC
    return bool((forced or ConfigStack().top().compute_capability) >= (major, 0))


@intrinsic
def adds_four(_: Any, array: Any) -> Any:
    """Return True if `add4_to` adds by one instruction: the array is aligned, and the GPU has the instruction."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        can = ir.Constant(integer(1), int(_has_compute_capability(ADDS_FOUR)))
        return builder.and_(can, _is_aligned(context, builder, signature, args))

    return types.boolean(array), codegen


@intrinsic
def add4_to(_: Any, array: Any, index: Any, values: Any) -> Any:
    """Add four float32 *values* to ``array[index : index + 4]``, each atomically.

    The array must be aligned (see `is_aligned`), and *index* a multiple of four.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointer_to(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        four = cgutils.unpack_tuple(builder, args[2], 4)
        if _has_compute_capability(ADDS_FOUR):
            text, constraints = "red.global.add.v4.f32 [$0], {$1, $2, $3, $4};", "l,f,f,f,f"
            asm(builder, ir.VoidType(), text, constraints, [pointer, *four], effect=True)
            return context.get_dummy_value()
        for i, value in enumerate(four):
            at = builder.gep(pointer, [ir.Constant(integer(32), 4 * i)])
            asm(builder, ir.VoidType(), "red.global.add.f32 [$0], $1;", "l,f", [at, value], effect=True)
        return context.get_dummy_value()

    return types.void(array, index, types.UniTuple(types.float32, 4)), codegen


# For each (is a float, bits): the type suffix of the reduction, and the asm constraint of the operand's register.
_REDUCTIONS = {
    (False, 32): ("u32", "r"),
    (False, 64): ("u64", "l"),
    (True, 32): ("f32", "f"),
    (True, 64): ("f64", "d"),
}


@intrinsic
def prefetch(_: Any, array: Any, first: Any, count: Any) -> Any:
    """Start to load ``array[first : first + count]`` into the L2 cache, without waiting.

    GPUs from compute capability 9.0 on do this by one instruction; on other GPUs, nothing happens.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not _has_compute_capability(_PREFETCHES):
            return context.get_dummy_value()
        array_type, first_type, count_type = signature.args
        pointer = pointer_to(context, builder, array_type, args[0], first_type, args[1])
        begin = builder.ptrtoint(pointer, integer(64))
        size = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
        count = context.cast(builder, args[2], count_type, types.int64)
        end = builder.add(begin, builder.mul(count, ir.Constant(integer(64), size)))
        # The instruction takes addresses and sizes that are multiples of 16.
        begin, end = (builder.and_(at, ir.Constant(integer(64), -16)) for at in (begin, end))
        length = builder.trunc(builder.sub(end, begin), integer(32))
        text = "{ .reg .pred p; setp.ne.b32 p, $1, 0; @p cp.async.bulk.prefetch.L2.global [$0], $1; }"
        asm(builder, ir.VoidType(), text, "l,r", [begin, length], effect=True)
        return context.get_dummy_value()

    return types.void(array, first, count), codegen


@intrinsic
def add_released(_: Any, array: Any, index: Any, value: Any) -> Any:
    """Add *value* to ``array[index]``, of 32 bits, by a reduction with release semantics.

    If a barrier of this block comes first, another block that reads the sum by `load_acquired` also reads all that the
    threads of this block wrote before the barrier.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, index_type, value_type = signature.args
        pointer = pointer_to(context, builder, array_type, args[0], index_type, args[1])
        value = context.cast(builder, args[2], value_type, types.int32)
        text = "red.release.gpu.global.add.u32 [$0], $1;"
        asm(builder, ir.VoidType(), text, "l,r,~{memory}", [pointer, value], effect=True)
        return context.get_dummy_value()

    return types.void(array, index, value), codegen


@intrinsic
def load_acquired(_: Any, array: Any, index: Any) -> Any:
    """Return ``array[index]``, of 32 bits, as int32, with acquire semantics: later accesses are not moved before it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, index_type = signature.args
        pointer = pointer_to(context, builder, array_type, args[0], index_type, args[1])
        text = "ld.acquire.gpu.global.u32 $0, [$1];"
        return asm(builder, integer(32), text, "=r,l,~{memory}", [pointer], effect=True)

    return types.int32(array, index), codegen


@intrinsic
def store_stamped(_: Any, array: Any, index: Any, stamp: Any, value: Any) -> Any:
    """Write *value* to ``array[2 * index]`` and *stamp* to the next element, of 32 bits each, in one store.

    Another block that reads the stamp by `load_stamped` also reads this value; accesses elsewhere are not ordered.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, index_type, stamp_type, value_type = signature.args
        pointer = pointer_to(context, builder, array_type, args[0], index_type, builder.shl(args[1], args[1].type(1)))
        high = builder.zext(context.cast(builder, args[2], stamp_type, types.uint32), integer(64))
        low = builder.zext(context.cast(builder, args[3], value_type, types.uint32), integer(64))
        word = builder.or_(builder.shl(high, ir.Constant(integer(64), 32)), low)
        asm(
            builder, ir.VoidType(), "st.relaxed.gpu.global.u64 [$0], $1;", "l,l,~{memory}", [pointer, word], effect=True
        )
        return context.get_dummy_value()

    return types.void(array, index, stamp, value), codegen


@intrinsic
def load_stamped(_: Any, array: Any, index: Any) -> Any:
    """Return the stamp and the value of one `store_stamped`, as int32, by one load."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, index_type = signature.args
        pointer = pointer_to(context, builder, array_type, args[0], index_type, builder.shl(args[1], args[1].type(1)))
        text = "ld.relaxed.gpu.global.u64 $0, [$1];"
        word = asm(builder, integer(64), text, "=l,l,~{memory}", [pointer], effect=True)
        high = builder.trunc(builder.lshr(word, ir.Constant(integer(64), 32)), integer(32))
        return context.make_tuple(builder, signature.return_type, [high, builder.trunc(word, integer(32))])

    return types.UniTuple(types.int32, 2)(array, index), codegen
