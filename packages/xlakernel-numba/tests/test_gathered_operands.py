"""Warnings about calls without a sharding rule, whose operands are split over devices and gathered."""

import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from numpy.testing import assert_allclose

from xlakernel.core import XLACustomKernel, export
from xlakernel.core.errors import GatheredOperandsWarning
from xlakernel.numba import numba_kernel

pytestmark = pytest.mark.usefixtures("compiled_anew")
V = np.arange(8, dtype=np.float32)


@pytest.fixture
def compiled_anew():
    """Programs found in JAX's persistent cache, which the tests use, are not partitioned again."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX asks only once whether there is one
    yield
    jax.config.update("jax_enable_compilation_cache", before)
    compilation_cache.reset_cache()


def make_kernel(name, **options):
    """Return a cumulative sum with this name, because there is one warning for each name."""

    def cumsum(x, out):
        total = x.dtype.type(0)
        for i in range(x.size):
            total += x[i]
            out[i] = total

    cumsum.__name__ = cumsum.__qualname__ = name
    return numba_kernel(numba.njit(cumsum), outs=lambda x: x, **options)


def warned(call):
    """Return the warnings of a call, after a check that its results are a cumulative sum."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        jax.block_until_ready(call())
    return [w for w in found if w.category is GatheredOperandsWarning]


PROGRAMS = {
    "eager": lambda run: run,
    "jit": jax.jit,
    "computed first": lambda run: jax.jit(lambda x: run(jnp.sin(x) * 2)),
    "in a loop": lambda run: jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, c: run(c) + x, x)),
    "in a branch": lambda run: jax.jit(lambda x: jax.lax.cond(x.sum() > 1, run, lambda x: 2 * run(x), x)),
    "mapped": lambda run: jax.jit(lambda x: jax.vmap(run)(jnp.stack([x, x]))),
    "checkpoint": lambda run: jax.jit(jax.checkpoint(run)),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_a_gathering_call_warns_once(make_mesh, put, program, kind):
    name = f"gathered_{program}_{kind}".replace(" ", "_")
    mesh, run = make_mesh(kind, a=4), make_kernel(name)
    with jax.set_mesh(mesh):
        x = put(mesh, V, "a")
        (found,) = warned(lambda: PROGRAMS[program](run)(x))
        assert str(found.message).startswith(f"{name}: its operands are split over devices and it has no sharding rule")
        assert "sharding_rule=" in str(found.message)
        assert found.filename == __file__
        assert not warned(lambda: jax.jit(lambda x: run(x) + 1)(x))


def test_calls_that_xla_partitions_itself(make_mesh, put):
    mesh = make_mesh(a=4)
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    run = make_kernel("gathered_constraint")
    assert len(warned(lambda: jax.jit(lambda x: run(jax.lax.with_sharding_constraint(x + 1, spread)))(V))) == 1


def test_an_operator(make_mesh, put):
    mesh = make_mesh(a=4)
    op = XLACustomKernel("gathered_operator")
    op.def_numba_kernel(lambda outs: make_kernel("gathered_in_operator"))
    assert len(warned(lambda: jax.jit(lambda x: op(x, outs=x))(put(mesh, V, "a")))) == 1


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32", "complex64"])
def test_every_dtype(make_mesh, put, dtype):
    def copy(x, out):
        for i in range(x.size):
            out[i] = x[i]

    copy.__name__ = copy.__qualname__ = f"gathered_{dtype}"
    run = numba_kernel(numba.njit(copy), outs=lambda x: x)
    x = jnp.asarray(V % 2, dtype)
    assert len(warned(lambda: jax.jit(run)(put(make_mesh(a=4), x, "a")))) == 1


def test_wide_dtypes_and_many_dimensions(make_mesh, put, x64):
    run = make_kernel("gathered_wide")
    x = np.arange(16.0).reshape(2, 8)
    assert len(warned(lambda: jax.jit(jax.vmap(run))(put(make_mesh(a=2), x, "a")))) == 1


def test_no_warning_if_nothing_is_gathered(make_mesh, put):
    mesh, run = make_mesh(a=4), make_kernel("not_gathered")
    x = put(mesh, V, "a")
    spec = jax.sharding.PartitionSpec
    for program, inputs in (
        (jax.jit(run), (V,)),  # one device
        (jax.jit(run), (put(mesh, V),)),  # a copy on each
        (jax.jit(lambda x, y: (run(y), x + 1)), (x, put(mesh, V))),  # what is split is something else
        (jax.jit(make_kernel("not_gathered_rule", sharding_rule="[i] -> [i]")), (x,)),
        (jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec("a"), out_specs=spec("a"))), (x,)),
    ):
        assert not warned(lambda program=program, inputs=inputs: program(*inputs))
    (found,) = warned(lambda: jax.jit(run)(x))
    assert "not_gathered" in str(found.message)


def test_the_compiled_program_is_unchanged(make_mesh, put, collectives):
    """The inspection of the operands is not part of the compiled program."""
    run, x = make_kernel("gathered_program"), put(make_mesh(a=4), V, "a")
    with pytest.warns(GatheredOperandsWarning):
        compiled = jax.jit(run).lower(x).compile()
    assert "xlakernel_operands" not in compiled.as_text()
    assert_allclose(compiled(x), np.cumsum(V))
    assert collectives(run, x) == {"all-gather"}


def test_warnings_that_are_errors(make_mesh, put):
    run, x = make_kernel("gathered_error"), put(make_mesh(a=4), V, "a")
    with warnings.catch_warnings():
        warnings.simplefilter("error", GatheredOperandsWarning)
        with pytest.raises(Exception, match="gathered_error: its operands are split"):
            jax.jit(run)(x)
    assert_allclose(jax.jit(run)(x), np.cumsum(V))


def test_an_exported_program_does_not_warn(make_mesh, put):
    run, x = make_kernel("gathered_exported"), put(make_mesh(a=4), V, "a")
    assert "xlakernel_operands" not in export(jax.jit(run))(x).exported.mlir_module()


CACHED = """
import logging, sys, warnings
import jax
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from xlakernel.core.errors import GatheredOperandsWarning
sys.path.insert(0, sys.argv[2])
from cached_kernel import run
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
mesh = jax.make_mesh((4,), ("a",), (AxisType.Auto,))
x = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, PartitionSpec("a")))
del hits[:]
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    print(jax.jit(run)(x)[-1], end=" ")
gathered = [w for w in found if w.category is GatheredOperandsWarning]
print(hits.count("/jax/compilation_cache/cache_misses"), len(gathered))
"""
KERNEL = """
import numba
from xlakernel.numba import numba_kernel

@numba.njit
def gathered_cached(x, out):
    out[:] = x * 3

run = numba_kernel(gathered_cached, outs=lambda x: x)
"""


@pytest.mark.process
def test_the_persistent_cache_finds_the_program(tmp_path):
    (tmp_path / "cached_kernel.py").write_text(KERNEL)
    command = [sys.executable, "-c", CACHED, str(tmp_path / "cache"), str(tmp_path)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    said = []
    for _ in range(2):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    (value, misses, warned_of), again = said
    assert (value, warned_of) == ("21.0", "1")
    assert int(misses) > 0
    assert again == ["21.0", "0", "0"]  # what is found there is not partitioned again
