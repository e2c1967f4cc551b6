"""Helpers of every kind, and notebooks' cells that define them, for several test files."""

import collections
import textwrap
import types

import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba.core import serialize
from numba.extending import intrinsic, overload, register_jitable

from xlakernel.numba import numba_kernel

#: Of tests whose `objmode` blocks refer to what cannot be pickled: locks, pointers of ctypes, copies of modules.
needs_objmode_without_pickles = pytest.mark.skipif(
    hasattr(serialize, "is_serialiable"),
    reason="this Numba pickles what an objmode block refers to: "
    "https://github.com/numba/numba/blob/0.61.0/numba/core/pythonapi.py",
)

ONE = jnp.zeros(1)

# Each defines helper(v) = v + G by another kind of compiled function.
HELPERS = {
    "njit": "@numba.njit\ndef helper(v): return v + G",
    "declared": "@numba.njit('f4(f4)')\ndef helper(v): return v + np.float32(G)",
    "default": "@numba.njit\ndef inner(v): return v + G\n@numba.njit\ndef helper(v, f=inner): return f(v)",
    "parallel": """
        @numba.njit(parallel=True)
        def helper(v):
            total = 0
            for i in numba.prange(1):
                total += G
            return v + total
        """,
    "recursive": "@numba.njit\ndef helper(v, n=2): return v + G if n == 0 else helper(v, n - 1)",
    "mutual": """
        @numba.njit
        def other(v, n): return v + G if n == 0 else helper(v, n - 1)
        @numba.njit
        def helper(v, n=1): return v if n == 0 else other(v, n - 1)
        """,
    "vectorize": "@numba.vectorize\ndef helper(v): return v + G",
    "vectorize declared": "@numba.vectorize(['f8(f8)'])\ndef helper(v): return v + G",
    "guvectorize": """
        @numba.guvectorize("(n)->(n)")
        def add(v, out):
            for i in range(len(v)): out[i] = v[i] + G
        @numba.njit
        def helper(v):
            out = np.empty(1)
            add(np.full(1, np.float64(v)), out)
            return out[0]
        """,
    "guvectorize declared": """
        @numba.guvectorize(["f8[:], f8[:]"], "(n)->(n)")
        def add(v, out):
            for i in range(len(v)): out[i] = v[i] + G
        @numba.njit
        def helper(v):
            out = np.empty(1)
            add(np.full(1, np.float64(v)), out)
            return out[0]
        """,
    "cfunc": "@numba.cfunc('f8(f8)')\ndef helper(v): return v + G",
    "stencil": """
        @numba.stencil
        def add(a): return a[0] + G
        @numba.njit
        def helper(v): return add(np.full(3, v))[1]
        """,
    "register_jitable": "@register_jitable\ndef helper(v): return v + G",
    "jitable of njit": "@numba.njit\ndef inner(v): return v + G\n@register_jitable\ndef helper(v): return inner(v)",
    "overload": "def helper(v): pass\n@overload(helper)\ndef declare(v): return lambda v: v + G",
    "inlined overload": "def helper(v): pass\n@overload(helper, inline='always')\n"
    "def declare(v): return lambda v: v + G",
    "overload at a distance": """
        def helper(v): pass
        @numba.njit
        def inner(v): return v + G
        def implementation(v): return inner(v)
        def choose(v): return implementation
        @overload(helper)
        def declare(v): return choose(v)
        """,
    "intrinsic": """
        @intrinsic
        def constant(typing):
            value = G
            return numba.float32(), lambda context, builder, s, a: context.get_constant(numba.float32, value)
        @numba.njit
        def helper(v): return v + constant()
        """,
    "intrinsic that compiles": """
        def add(v): return v + G
        @intrinsic
        def plus(typing, v):
            def generate(context, builder, signature, arguments):
                return context.compile_internal(builder, add, signature, arguments)
            return numba.float64(numba.float64), generate
        @numba.njit
        def helper(v): return plus(np.float64(v))
        """,
    "namedtuple": "@numba.njit\ndef inner(v): return v + G\npair = Pair(inner, 1)\n"
    "@numba.njit\ndef helper(v): return pair.first(v)",
}
HELPERS = {name: textwrap.dedent(source) for name, source in HELPERS.items()}
# Kinds of copies; tests that do not copy in ways of their own have the others marked slow.
FIRST_HELPERS = ("njit", "default", "vectorize", "cfunc", "overload")


def slow_but_first(names):
    return [name if name in FIRST_HELPERS else pytest.param(name, marks=pytest.mark.slow) for name in names]


KERNEL = "@numba.njit\ndef kernel(x, out): out[0] = helper(x[0])\n"


def define(source, **names):
    """Run *source* like a notebook's cell, in a namespace that later cells may change."""
    space = {
        "numba": numba,
        "np": np,
        "register_jitable": register_jitable,
        "overload": overload,
        "intrinsic": intrinsic,
        "Pair": collections.namedtuple("Pair", "first second"),
        **names,
    }
    exec(source, space)  # noqa: S102
    return space


def run(kernel):
    return float(numba_kernel(kernel, outs=ONE)(ONE)[0])


def module_of(**values):
    module = types.ModuleType("constants")
    vars(module).update(values)
    return module
