"""Static expressions that Warp evaluates when it generates code: in tiles, nested functions, exports and processes."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
import warp as wp

from xlakernel.core import deserialize, export
from xlakernel.warp import warp_kernel
from xlakernel.warp._internals import code

A = wp.array(dtype=float)
X = np.ones(4, np.float32)
OUT = jax.ShapeDtypeStruct((4,), np.float32)
PARTS = (0.5, 0.5)


@pytest.fixture(autouse=True)
def parts():
    assign(1.0)
    yield
    assign(1.0)


def assign(value):
    global PARTS
    PARTS = (value / 2, value / 2)


def scale_of(kernel, **options):
    return float(jax.jit(warp_kernel(kernel, OUT, **options)).lower(X).compile()(X)[0])


def tiles(**options):
    @wp.kernel(enable_backward=False, **options)
    def scaled_tiles(x: A, out: A):
        i = wp.tid()
        tile = wp.tile_load(x, shape=4, offset=4 * i)
        for part in range(2):
            tile = tile * wp.static(2.0 * PARTS[part])
        wp.tile_store(out, tile, offset=4 * i)

    return scaled_tiles


@pytest.mark.parametrize("options", [{}, {"module": "unique"}], ids=["module", "unique"])
def test_block_sizes_of_a_tile_kernel_have_one_value(options):
    kernel = tiles(**options)
    assert scale_of(kernel, launch_dims=1) == 1.0
    first = {size: code.code_hash(kernel, size) for size in (1, 32, 64)}
    assign(2.0)
    later = tiles(module="unique")
    for size in (64, 1, 32):
        assert code.code_hash(kernel, size) == first[size]
        assert code.code_hash(later, size) != first[size]
        assert code.is_outdated(kernel, size)
        assert not code.is_outdated(later, size)
    assert scale_of(later, launch_dims=1) == 4.0


@wp.func
def inner(x: float):
    total = float(0.0)  # noqa: UP018  # a variable, in Warp
    for part in range(2):
        total += wp.static(PARTS[part]) * x
    return total


@wp.func
def middle(x: float):
    return inner(x) + 1.0


@wp.func
def outer(x: float):
    total = float(0.0)  # noqa: UP018
    for part in range(2):
        total += wp.static(2.0 * PARTS[part]) * middle(x)
    return total


def nested(module):
    @wp.kernel(enable_backward=False, module=module)
    def with_nested_functions(x: A, out: A):
        i = wp.tid()
        out[i] = outer(x[i])

    return with_nested_functions


def test_functions_that_call_functions():
    assert scale_of(nested("unique")) == 4.0
    assign(2.0)
    assert scale_of(nested("unique")) == 12.0
    assign(1.0)
    assert scale_of(nested("unique")) == 4.0


def test_modules_that_share_a_function_have_their_own_values():
    first = nested("first_of_two")
    assert scale_of(first) == 4.0
    assign(2.0)
    second = nested("second_of_two")
    assert scale_of(second) == 12.0
    assert scale_of(first) == 4.0
    assert code.is_outdated(first, 1)
    assert not code.is_outdated(second, 1)


@wp.kernel(enable_backward=False)
def exported_parts(x: A, out: A):
    i = wp.tid()
    out[i] = 0.0
    for part in range(2):
        out[i] += wp.static(PARTS[part]) * x[i]


def test_export():
    pytest.importorskip("flatbuffers", reason="xlakernel-core[export] is not installed")
    exported = export(jax.jit(warp_kernel(exported_parts, OUT)))(X)
    np.testing.assert_array_equal(deserialize(exported.serialize()).call(X), X)


SCRIPT = """
import numpy as np, warp as wp
from xlakernel.warp import warp_kernel

A = wp.array(dtype=float)
SCALE, PARTS = {value}, ({value} / 2, {value} / 2)

@wp.kernel(enable_backward=False)
def scaled(x: A, out: A):
    i = wp.tid()
    out[i] = 0.0
    for part in range(2):
        out[i] += wp.static(PARTS[part]) * SCALE * x[i]

print("found", float(warp_kernel(scaled, lambda x: x)(np.ones(4, np.float32))[0]))
"""


@pytest.mark.process
def test_a_process_with_an_edited_constant(tmp_path):
    script = tmp_path / "script.py"
    env = {**os.environ, "WARP_CACHE_PATH": str(tmp_path / "cache")}
    for value in (1.0, 3.0, 1.0):
        script.write_text(SCRIPT.format(value=value))
        done = subprocess.run([sys.executable, script], env=env, check=True, stdout=subprocess.PIPE, text=True)
        assert done.stdout.splitlines()[-1] == f"found {value**2}"
