"""Recipes of exported launches: writing and loading."""

import json

import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba import cuda
from numba.cuda import extending

from xlakernel.core.backend import gpu
from xlakernel.core.errors import ExportError
from xlakernel.core.gpu import target
from xlakernel.core.structs import Struct
from xlakernel.cuda import _export, numba_cuda_kernel

pytestmark = pytest.mark.versions

X = Struct((3, 2), jnp.bfloat16)


def made(factor, **options):
    def scaled(x, out, power=1):
        out[0] = factor * x[0] ** power

    options = {"launch_dims": 6, "outs": lambda x: x, **options}
    return numba_cuda_kernel(cuda.jit(scaled), **options)


def written(launchable):
    return json.loads(json.dumps(launchable.recipe().data))


@pytest.fixture
def rebuilt(monkeypatch, h200):
    """Return a function that makes a launchable of what was written."""
    found = []
    for module in (gpu, target):  # the second one where a recording is registered again
        monkeypatch.setattr(module, "register", lambda launchable, *, once, debug: found.append((launchable, debug)))

    def rebuild(name, data):
        _export.prepare(name, data)()
        return found[-1]

    return rebuild


CALLS = {
    "plain": ({}, {}),
    "scalar": ({}, {"scalars": {"power": np.int8(2)}}),
    "init": ({"output_init": float("nan")}, {}),
    "each init": ({"output_init": [2]}, {}),
    "shared": ({"shared_mem": 100_000, "threads_per_block": 32}, {}),
    "function": ({"launch_dims": lambda x: x.size}, {}),
    "empty": ({"launch_dims": 0}, {}),
    "alias": ({"input_output_aliases": {0: 0}}, {}),
    "debug": ({}, {"debug": True}),
    "batch": ({"batch_axis": "y"}, {"levels": 1}),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_launch_is_the_same_after_a_round_trip(launchable_of, rebuilt, call):
    options, said = CALLS[call]
    scalars, levels = said.get("scalars", {"power": 1}), said.get("levels", 0)
    x, out = (Struct((size,) * levels + X.shape, X.dtype) for size in (1, 7))
    before = launchable_of(made(2, **options), [x], [out], debug=said.get("debug", False), levels=levels, **scalars)
    after, debug = rebuilt("given", written(before))
    assert after.name == "given" and debug == said.get("debug", False)
    assert after.arrays == before.arrays
    for field in ("kernel", "geometry", "shared_mem", "slots", "arrays", "fills", "debug"):
        assert getattr(after.launch, field) == getattr(before.launch, field), field


def test_another_kernel_under_the_name_is_refused(launchable_of, rebuilt):
    data = written(launchable_of(made(2), [X], [X], power=1))
    data["kernel"] = written(launchable_of(made(3), [X], [X], power=1))["kernel"]
    with pytest.raises(ExportError, match="is not the one that was exported"):
        rebuilt("given", data)


GAIN = 2.0


@cuda.jit(device=True)
def device(v):
    return GAIN * v


@numba.njit
def host(v):
    return GAIN * v


@cuda.jit(device=True)
def recursive(v, n=3):
    return recursive(v, n - 1) if n else GAIN * v


@extending.intrinsic
def intrinsic(context, v):
    return v(v), lambda context, builder, signature, args: args[0] if GAIN else None


@pytest.mark.parametrize("helper", [device, host, recursive, intrinsic], ids=lambda helper: helper.__name__)
def test_helpers_that_differ_by_a_global(launchable_of, rebuilt, monkeypatch, helper):
    def applied(x, out):
        out[0] = helper(x[0])

    programs = []
    for gain in (2.0, 3.0):
        monkeypatch.setitem(globals(), "GAIN", gain)
        run = numba_cuda_kernel(cuda.jit(applied), lambda x: x, launch_dims=1)
        programs.append(written(launchable_of(run, [X], [X])))
    for program in (*programs, programs[0]):
        rebuilt("given", program)  # compares it with what was exported


def test_a_recipe_of_another_format_is_refused(launchable_of, rebuilt):
    data = written(launchable_of(made(2), [X], [X], power=1)) | {"format": 99}
    with pytest.raises(ExportError, match="another xlakernel-cuda"):
        rebuilt("given", data)


def test_kernels_that_cannot_be_compared_are_not_exported(launchable_of):
    thing = object()

    def holds(x, out):
        out[0] = x[0] if thing is None else 0

    launchable = launchable_of(numba_cuda_kernel(cuda.jit(holds), lambda x: x, launch_dims=1), [X], [X])
    with pytest.raises(ExportError, match="refers to <object"):
        launchable.recipe()
