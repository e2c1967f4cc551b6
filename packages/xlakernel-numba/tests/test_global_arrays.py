"""Arrays that a kernel refers to: a program contains the elements that they had when it was lowered."""

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba.extending import intrinsic

from xlakernel.numba import numba_kernel

ONE = jnp.zeros(1)

# Numba writes the elements of the first into the code, and the addresses of the others.
ARRAYS = {
    "small": lambda: np.ones(4),
    "strided": lambda: np.ones(8)[::2],
    "reversed": lambda: np.ones(8)[::-1],
    "large": lambda: np.ones(300_000),
    "large and strided": lambda: np.ones(600_000)[::2],
    "a field of records": lambda: np.ones(8, [("value", "f8"), ("other", "i4")])["value"],
}

KERNEL = "@numba.njit\ndef kernel(x, out): out[0] = TABLE[3]"
HELPERS = {
    "njit": "@numba.njit\ndef helper(): return TABLE[3]",
    "declared": "@numba.njit('f8()')\ndef helper(): return TABLE[3]",
    "default": "@numba.njit\ndef helper(t=TABLE): return t[3]",
    "tuple": "BOTH = TABLE, 1\n@numba.njit\ndef helper(): return BOTH[0][3]",
    "vectorize": "@numba.vectorize\ndef add(v): return v + TABLE[3]\n@numba.njit\ndef helper(): return add(0.0)",
    "stencil": "@numba.stencil\ndef add(a): return a[0] + TABLE[3]\n"
    "@numba.njit\ndef helper(): return add(np.zeros(3))[1]",
    "module": "np.xlakernel_table = TABLE\n@numba.njit\ndef helper(): return np.xlakernel_table[3]",
    "parallel": """
@numba.njit(parallel=True)
def helper():
    total = 0.0
    for i in numba.prange(1): total += TABLE[3 + i]
    return total
""",
    "intrinsic": """
@intrinsic
def table(typing):
    kind = numba.typeof(TABLE)
    return kind(), lambda context, builder, s, a: context.get_constant_generic(builder, kind, TABLE)
@numba.njit
def helper(): return table()[3]
""",
}


def define(table, source=KERNEL):
    space = {"numba": numba, "np": np, "TABLE": table, "intrinsic": intrinsic}
    exec(source, space)  # noqa: S102
    return space["kernel"]


def lowered(kernel):
    return jax.jit(numba_kernel(kernel, outs=ONE)).lower(ONE).compile()


def check_frozen(make, source):
    """Change an array after a program is lowered, and lower it again with an equal array."""
    table = make()
    kernel = define(table, source)
    programs = [lowered(kernel)]
    table[:] = 2
    programs += [lowered(kernel), lowered(define(make(), source))]
    table[:] = 3
    assert [float(program(ONE)[0]) for program in programs] == [1, 2, 1]


@pytest.mark.parametrize("array", ARRAYS)
def test_an_array_of_a_kernel(array):
    check_frozen(ARRAYS[array], KERNEL)


# The arrays in turn: arrays that Numba embeds, and others, are handled before the kinds of helpers differ.
@pytest.mark.parametrize(
    ("helper", "array"),
    [
        pytest.param(helper, array, marks=[pytest.mark.slow] * ((i + j) % 2))
        for i, helper in enumerate(HELPERS)
        for j, array in enumerate(["strided", "large"])
    ],
)
def test_an_array_of_a_helper(array, helper):
    check_frozen(ARRAYS[array], f"{HELPERS[helper]}\n@numba.njit\ndef kernel(x, out): out[0] = helper()")
    vars(np).pop("xlakernel_table", None)


@pytest.mark.parametrize("steps", [(1, 1, 1), (2, 1, 1), (1, -1, 3)])
@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_elements_of_every_memory_order(steps, axes, x64):
    table = np.arange(200_000.0).reshape(100, 10, 200)[tuple(map(slice, [None] * 3, [None] * 3, steps))].transpose(axes)
    run = numba_kernel(define(table, KERNEL.replace("[3]", ".T[1, 2, 3]")), outs=jax.ShapeDtypeStruct((1,), "f8"))
    assert run(ONE)[0] == table.T[1, 2, 3]


def test_equal_arrays_share_a_copy():
    kernels = [define(np.full(300_000, 5.0), f"{KERNEL.replace('[3]', '.ctypes.data')} * {i}") for i in (1, 1.0)]
    addresses = [int(numba_kernel(kernel, outs=jax.ShapeDtypeStruct((1,), "uint32"))(ONE)[0]) for kernel in kernels]
    assert addresses[0] == addresses[1]


def test_bytes_of_more_than_a_megabyte():
    """Numba embeds the address of a temporary copy of them."""
    kernel = define(bytes(range(256)) * 8000, KERNEL.replace("[3]", "[1_000_003]"))
    program = lowered(kernel)
    np.ones(300_000)
    assert program(ONE)[0] == 1_000_003 % 256
