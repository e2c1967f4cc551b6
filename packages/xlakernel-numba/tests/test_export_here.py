"""Exporting and loading in one process: what is refused, what is shared, and where a loaded program can be called."""

import gc
import itertools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest

from xlakernel.core import XLACustomKernel, deserialize, export
from xlakernel.core.artifact import pack, unpack
from xlakernel.core.errors import ExportError
from xlakernel.core.ffi.registry import registered_targets
from xlakernel.numba import numba_kernel

pytestmark = pytest.mark.slow

X = jax.ShapeDtypeStruct((3,), jnp.float32)


def same(x):
    return x


@numba.njit
def double(x, out):
    for i in range(x.size):
        out[i] = 2 * x[i]


run_double = numba_kernel(double, outs=same)


def exported(function=run_double, *specs, **options):
    return export(jax.jit(function), **options)(*(specs or (X,)))


numbers = itertools.count()


def altered(**changes):
    """Return the program of `double` as one of another name, with a changed recipe."""
    targets, program, _ = unpack(exported().serialize())
    (target,) = targets
    number = f"{next(numbers):04}"
    name = target.name[: -len(number)] + number  # of the same length, as the program's format wants it
    target.recipe.data.update(changes)
    return pack([type(target)(name, "cpu", target.recipe)], program.replace(target.name.encode(), name.encode()))


def test_what_is_exported_is_described():
    program = exported()
    assert program.fun_name == "double"
    assert program.platforms == ("cpu",)
    assert program.nr_devices == 1
    (name,) = program.targets
    assert "double(i0 float32[1d], o0 float32[1d])" in name and name in registered_targets()
    assert [a.shape for a in program.in_avals + program.out_avals] == [(3,), (3,)]
    assert (program.in_tree, program.out_tree) == (jax.tree.structure(((0,), {})), jax.tree.structure(0))
    assert "custom_call" in program.mlir_module()
    assert "double" in repr(program)


def test_only_the_handlers_that_a_program_calls_are_exported():
    run_double(np.ones((1, 3), np.float32)[0])
    run_double(np.ones(3, np.int32))
    assert [target.name for target in unpack(exported().serialize())[0]] == list(exported().targets)
    assert len(exported().targets) == 1
    assert exported(jnp.sin).targets == ()


def test_a_name_that_another_one_begins_or_ends_with_is_not_exported(monkeypatch):
    (name,) = exported().targets
    monkeypatch.setattr("xlakernel.core.exported.registered_targets", lambda: [name[:-1], name[1:], name])
    assert exported().targets == (name,)


def test_equal_programs_have_equal_bytes():
    blob = exported().serialize()
    run_double(np.ones(3, np.int8))
    assert exported().serialize() == blob


def test_loading_where_the_kernel_is_known_builds_nothing():
    blob, known = exported().serialize(), registered_targets()
    results = [deserialize(blob).call(jnp.ones(3)).tolist() for _ in range(3)]
    assert results == [[2, 2, 2]] * 3
    assert registered_targets() == known


def test_a_kernel_is_built_under_the_name_of_the_program():
    program = deserialize(altered())
    assert program.targets[0] in registered_targets()
    assert program.call(jnp.ones(3)).tolist() == [2, 2, 2]


def test_a_loaded_program_can_be_exported_again():
    again = deserialize(deserialize(exported().serialize()).serialize())
    outer = export(jax.jit(lambda x: again.call(x) + 1))(X)
    assert outer.targets == again.targets
    assert deserialize(outer.serialize()).call(jnp.ones(3)).tolist() == [3, 3, 3]


def test_calls_are_compiled_once():
    program, x = deserialize(exported().serialize()), jnp.ones(3)
    program.call(x)
    program.call(x + 1)
    assert program.call._cache_size() == 1


def test_vmap_belongs_inside():
    with pytest.raises(NotImplementedError, match="call_exported"):
        jax.vmap(exported().call)(jnp.ones((2, 3)))
    inside = exported(jax.vmap(run_double), jax.ShapeDtypeStruct((2, 3), jnp.float32))
    assert inside.call(jnp.ones((2, 3))).sum() == 12


def test_a_derivative_needs_a_vjp():
    op = XLACustomKernel("of the vjp test", replace=True)
    op.def_numba_kernel(lambda outs: numba_kernel(double, outs=outs))
    op.def_jvp_rule2(lambda t, x, *, outs, **params: op(t, outs=outs))
    op.def_transpose_rule(lambda cts, x, *, outs, **params: op(*cts, outs=list(outs)))
    program = exported(lambda x: op(x, outs=x))
    x = jnp.arange(3.0)
    loaded = deserialize(program.serialize(vjp_order=1))
    assert program.has_vjp() and loaded.has_vjp()
    assert loaded.vjp().call(x, x)[0].tolist() == program.vjp().call(x, x)[0].tolist() == [0, 2, 4]
    assert jax.grad(lambda x: (x * loaded.call(x)).sum())(x).tolist() == [0, 4, 8]
    without = deserialize(program.serialize())
    assert not without.has_vjp()
    with pytest.raises(ValueError, match="without its derivative"):
        jax.grad(lambda x: without.call(x).sum())(x)


def test_kernels_that_only_the_derivative_calls_are_exported():
    def make(value):
        @numba.njit
        def scale(x, out):
            for i in range(x.size):
                out[i] = x[i] * value

        return numba_kernel(scale, outs=same)

    first, second = make(np.float32(3)), make(np.float32(5))

    @jax.custom_vjp
    def f(x):
        return first(x)

    f.defvjp(lambda x: (first(x), None), lambda _, ct: (second(ct),))
    program = exported(f)
    assert len(program.targets) == 1
    loaded = deserialize(program.serialize(vjp_order=1))
    assert len(loaded.targets) == 2
    assert jax.grad(lambda x: loaded.call(x).sum())(jnp.ones(3)).tolist() == [5, 5, 5]


class Opaque:
    """Numba freezes a helper's default of this type without looking at it."""


def test_a_kernel_with_an_unknown_object_is_refused():
    thing = Opaque()

    @numba.extending.register_jitable
    def helper(value, what=thing):
        return value

    @numba.njit
    def kernel(x, out):
        for i in range(x.size):
            out[i] = helper(x[i], 1)

    with pytest.raises(ExportError, match=r"kernel .*\.kernel refers to <.*Opaque object .* cannot be compared"):
        exported(numba_kernel(kernel, outs=same))


FACTOR = 2


@numba.njit
def reads_global(x, out):
    for i in range(x.size):
        out[i] = FACTOR * x[i]


def test_a_kernel_is_exported_with_the_values_of_that_time(monkeypatch):
    run = numba_kernel(reads_global, outs=same)
    jitted = jax.jit(run)
    before = export(jitted)(X)
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert exported(lambda x: run(x)).call(jnp.ones(3)).tolist() == [3, 3, 3]
    assert before.call(jnp.ones(3)).tolist() == [2, 2, 2]
    with pytest.raises(ExportError, match="compiled before something that it refers to changed"):
        export(jitted)(X)  # JAX has what it lowered before


@numba.njit
def early(value):
    return value * FACTOR


@numba.njit
def calls_early(x, out):
    for i in range(x.size):
        out[i] = early(x[i])


def test_a_helper_that_was_compiled_on_its_own_is_exported(monkeypatch):
    early(1.0)
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert exported(numba_kernel(calls_early, outs=same)).call(jnp.ones(3)).tolist() == [3, 3, 3]


def test_a_kernel_that_nobody_holds_any_more_is_exported():
    def program(x):
        @numba.njit
        def passing(x, out):
            for i in range(x.size):
                out[i] = 6 * x[i]

        return numba_kernel(passing, outs=same)(x)

    jitted = jax.jit(program)
    jitted(jnp.ones(3))
    gc.collect()
    assert export(jitted)(X).call(jnp.ones(3)).tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "exported by another xlakernel-numba, whose recipes are of format 2"),
        ({"kernel": {"module": "no.such.module", "qualname": "f"}}, r"module no\.such\.module cannot be imported"),
        ({"kernel": {"module": "math", "qualname": "nothing"}}, "math .* has nothing under that name"),
        ({"kernel": {"module": "math", "qualname": "sin"}}, "math .* has a builtin_function_or_method under that"),
        ({"checks": {"python": "3.0", "bytecode": "", "source": None}}, "compared by its source, which is missing"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(changes, message):
    with pytest.raises(ExportError, match=message):
        deserialize(altered(**changes))


SHARDED = """
import jax, jax.numpy as jnp, numba, numpy as np

from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from xlakernel.core import deserialize, export
from xlakernel.numba import numba_kernel

@numba.njit
def cumsum(x, out):
    total = np.float32(0)
    for i in range(x.size):
        total += x[i]
        out[i] = total

f = numba_kernel(cumsum, outs=lambda x: x)
mesh = Mesh(np.array(jax.devices()), ("d",))
x = jax.device_put(jnp.ones(8), NamedSharding(mesh, P("d")))
def mapped(function, out_specs=P("d")):
    return jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=out_specs)

alone = deserialize(export(jax.jit(f))(jax.ShapeDtypeStruct((2,), jnp.float32)).serialize())
print(alone.nr_devices, jax.jit(mapped(alone.call))(x).tolist())
for function in (f, alone.call):
    try:
        mapped(function, out_specs=P())(x)
    except ValueError as error:
        print("refused", "replicated" in str(error))
    total = mapped(lambda x: jax.lax.psum(function(x), "d"), out_specs=P())
    print(total(x).tolist())
whole = deserialize(export(jax.jit(mapped(f)))(x).serialize())
result = whole.call(x)
print(whole.nr_devices, result.tolist(), len(result.sharding.device_set))
"""

CACHED = """
import sys, json
import jax, jax.numpy as jnp, numba
from jax import monitoring
from pathlib import Path
from xlakernel.core import deserialize, export
from xlakernel.numba import numba_kernel

@numba.njit
def triple(x, out):
    for i in range(x.size):
        out[i] = FACTOR * x[i]

FACTOR = int(sys.argv[2])
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
events = []
monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))
x = jnp.arange(3.0)
report = []
for function in (numba_kernel(triple, outs=lambda x: x), jax.vmap(numba_kernel(triple, outs=lambda x: x))):
    given = x if not report else x[None]
    jitted = jax.jit(function)
    for call in (jitted, export(jitted)(given).call):
        events.clear()
        result = call(given)
        report.append([events.count("cache_hits"), events.count("cache_misses"), result.ravel().tolist()])
print(json.dumps(report))
"""


def run_file(path, *arguments, **settings):
    env = {**os.environ, "JAX_PLATFORMS": "cpu", **settings}
    command = [sys.executable, "-W", "error", str(path), *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_several_devices(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SHARDED)
    one, *checked, four = run_file(script, XLA_FLAGS="--xla_force_host_platform_device_count=4").splitlines()
    assert one == "1 [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]"
    assert checked == ["refused True", "[4.0, 8.0]"] * 2
    assert four == "4 [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0] 4"


def test_jaxs_persistent_cache_hits_across_processes(tmp_path):
    script, cache = tmp_path / "script.py", tmp_path / "cache"
    script.write_text(CACHED)
    first, second, changed = (json.loads(run_file(script, cache, factor)) for factor in (3, 3, 4))
    for found, hits, misses, factor in ((first, 0, 1, 3), (second, 1, 0, 3), (changed, 0, 1, 4)):
        assert found == [[hits, misses, [0.0, factor, 2.0 * factor]]] * 4
