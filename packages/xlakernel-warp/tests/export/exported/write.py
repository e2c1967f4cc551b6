"""Exports programs into the folder `own`, and changed as other versions of Warp write them into others."""

import sys
import unittest.mock
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import kernels
from jax import export as jax_export
from kernels import wrap

from xlakernel.core import debug_mode, export
from xlakernel.core.programs.artifact import pack, unpack
from xlakernel.warp import jax_callable, jax_kernel, warp_kernel
from xlakernel.warp._internals import launches
from xlakernel.warp._internals.recognition import Unrecognised

X, ONE = (jax.ShapeDtypeStruct((size,), jnp.float32) for size in (3, 1))
sum_into = jax_kernel(kernels.total, in_out_argnames=["out"])
derived = jax_kernel(kernels.square, enable_backward=True)
one_thread = wrap(kernels.running, launch_dims=1)
in_order = wrap(kernels.running, launch_dims=1, has_side_effect=True)
beginning = {init: warp_kernel(kernels.total, ONE, output_init=init) for init in (3.0, 5.0)}

WRAPPED = ["plain", "calls_helper", "reads_module", "reads_vector", "with_struct", "generic"]
PROGRAMS = {name: wrap(getattr(kernels, name)) for name in WRAPPED} | {
    "decorated": kernels.decorated,
    "decorated_as_warps": lambda x: kernels.decorated_as_warps(x)[0],
    "several": lambda x: jax_callable(kernels.several)(x)[0],
    "decorated_callable": lambda x: kernels.decorated_callable(x, 0.5)[0],
    "overload": lambda x: wrap(kernels.of_matrices)(jnp.broadcast_to(x[:, None, None], (3, 2, 2)))[:, 1, 0],
    "static": lambda x: wrap(kernels.scaled)(x, factor=2.0, shift=1) + wrap(kernels.scaled)(x, factor=0.5, shift=-1),
    "two_shapes": lambda x: wrap(kernels.plain)(x) + wrap(kernels.plain)(jnp.tile(x, 2))[:3],
    "output_init": lambda x: x + beginning[3.0](x),
    "in_out": lambda x: x + sum_into(x, jnp.full(1, 4.0))[0],
    "alias": lambda x: x + wrap(kernels.total, input_output_aliases={0: 0}, launch_dims=1)(x),
    "dims": wrap(kernels.running, launch_dims=lambda x: 1, block_dim=32),
    "rows": lambda x: wrap(kernels.of_rows)(jnp.stack([x, x]))[1],
    "nothing": lambda x: x + wrap(kernels.plain)(x[:0]).sum() + beginning[5.0](x[:0]),
    "mapped": lambda x: jax.vmap(one_thread)(jnp.stack([x, 2 * x]))[1],
    "one_by_one": lambda x: jax.vmap(in_order)(jnp.stack([x, 2 * x]))[1],
    "gradient": jax.grad(lambda x: jnp.sin(derived(x)[0]).sum()),
    "mapped_gradient": lambda x: jax.vmap(jax.grad(lambda x: derived(x)[0].sum()))(jnp.stack([x, x]))[1],
}


def exported():
    """Yield names and programs."""
    for name, program in PROGRAMS.items():
        yield name, export(jax.jit(program))(X).serialize()
    yield "differentiable", export(jax.jit(lambda x: derived(x)[0]))(X).serialize(vjp_order=1)
    (n,) = jax_export.symbolic_shape("n")
    rows = jax.ShapeDtypeStruct((n, 3), jnp.float32)
    yield "symbolic", export(jax.jit(jax.vmap(wrap(kernels.calls_helper))))(rows).serialize()
    with debug_mode():
        yield "debug", export(jax.jit(wrap(kernels.gap)))(X).serialize()
    unknown = Unrecognised("it is another one")
    with unittest.mock.patch.object(launches, "native_entry", side_effect=unknown), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield "through_python", export(jax.jit(wrap(kernels.negated)))(X).serialize()


def own(data):
    """As they are."""


def another_warp(data):
    if "function" in data:
        data["warp"] = "1.0"
        return
    data["checks"]["warp"] = "1.0"
    data["options"] = [pair for pair in data["options"] if pair[0] != "fast_math"] + [["old", "1"]]


def other_structs(data):
    another_warp(data)
    if data.get("native"):  # of a kernel on the CPU
        data["native"] = f"00{data['native']}"


folder = Path(sys.argv[1])
for name, blob in exported():
    for change in (own, another_warp, other_structs):
        targets, program, _ = unpack(blob)
        for target in targets:
            change(target.recipe.data)
        (folder / change.__name__).mkdir(exist_ok=True)
        (folder / change.__name__ / name).write_bytes(pack(targets, program))
