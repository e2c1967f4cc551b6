"""Kernels that programs are exported with. A test loads these beside a copy of this file that was changed."""

import functools
from typing import Any

import helpers
import warp as wp
from helpers import helper

from xlakernel.warp import jax_callable, jax_kernel, warp_kernel


def like_first(x, *_):
    return x


wrap = functools.partial(warp_kernel, outs=like_first)
VECTOR = wp.constant(wp.vec3(1.0, 2.0, 3.0))


@wp.kernel
def plain(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()  # as plain as can be
    out[i] = x[i] + 1.0


@wrap
@wp.kernel
def decorated(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] + 2.0


@jax_kernel
@wp.kernel
def decorated_as_warps(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] + 3.0


@wp.kernel
def calls_helper(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = helper(x[i])


@wp.kernel
def reads_module(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * float(helpers.SCALE)


@wp.kernel
def reads_vector(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * wp.dot(VECTOR, VECTOR)


@wp.struct
class Pair:
    first: float
    second: float


@wp.func
def both(pair: Pair):
    return float(pair.first) + float(pair.second)


@wp.kernel
def with_struct(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    pair = Pair()
    pair.first = x[i]
    pair.second = type(pair.second)(0.5)
    out[i] = both(pair)


@wp.func
def double(value: Any):
    return value + value


@wp.kernel
def generic(x: wp.array(dtype=Any), out: wp.array(dtype=Any)):
    i = wp.tid()
    out[i] = double(x[i])


of_matrices = wp.overload(generic, [wp.array(dtype=wp.mat22), wp.array(dtype=wp.mat22)])


@wp.kernel
def scaled(x: wp.array(dtype=float), factor: float, out: wp.array(dtype=float), shift: int):
    i = wp.tid()
    out[i] = x[i] * factor + float(shift)


@wp.kernel
def total(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    wp.atomic_add(out, 0, x[i])


@wp.kernel
def running(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    s = float(0.0)  # noqa: UP018 - a literal would be a constant to Warp
    for i in range(x.shape[0]):
        s += x[i]
        out[i] = s


@wp.kernel
def of_rows(x: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
    i, j = wp.tid()
    out[i, j] = x[i, j] + float(10 * i)


@wp.kernel
def gap(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    if i != 1:
        out[i] = x[i]


@wp.kernel
def square(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * x[i]


@wp.kernel
def negated(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = -x[i]


def several(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    between = wp.empty_like(x)
    wp.launch(plain, dim=x.shape, inputs=[x], outputs=[between])
    wp.launch(calls_helper, dim=x.shape, inputs=[between], outputs=[out])


@jax_callable
def decorated_callable(x: wp.array(dtype=float), times: float, out: wp.array(dtype=float)):
    wp.launch(scaled, dim=x.shape, inputs=[x, times], outputs=[out, 1])
