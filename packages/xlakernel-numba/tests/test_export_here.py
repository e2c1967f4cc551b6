"""Export and loading in one process: refused programs, shared handlers, and calls of a loaded program."""

import base64
import contextlib
import gc
import hashlib
import importlib
import itertools
import json
import os
import pickle
import random
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest

from xlakernel.core import XLACustomKernel, deserialize, export
from xlakernel.core.errors import ArgumentError, ExportError
from xlakernel.core.ffi.registry import registered_targets
from xlakernel.core.programs.artifact import pack, unpack
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
    """Return the program of `double` under another name, with a changed recipe."""
    targets, program, _ = unpack(exported().serialize())
    (target,) = targets
    number = f"{next(numbers):04}"
    name = target.name[: -len(number)] + number  # of the same length, as the program's format wants it
    target.recipe.data.update(changes)
    return pack([type(target)(name, "cpu", target.recipe)], program.replace(target.name.encode(), name.encode()))


def test_an_exported_program_has_a_description():
    program = exported()
    assert program.exported.fun_name == "double"
    assert program.platforms == ("cpu",)
    assert program.exported.nr_devices == 1
    (name,) = program.targets
    assert "double(i0 float32[1d], o0 float32[1d])" in name and name in registered_targets()
    assert [a.shape for a in program.exported.in_avals + program.exported.out_avals] == [(3,), (3,)]
    assert (program.exported.in_tree, program.exported.out_tree) == (
        jax.tree.structure(((0,), {})),
        jax.tree.structure(0),
    )
    assert "custom_call" in program.exported.mlir_module()
    assert "double" in repr(program)


def test_only_the_handlers_that_a_program_calls_are_exported():
    run_double(np.ones((1, 3), np.float32)[0])
    run_double(np.ones(3, np.int32))
    assert [target.name for target in unpack(exported().serialize())[0]] == list(exported().targets)
    assert len(exported().targets) == 1
    assert exported(jnp.sin).targets == ()


def test_a_name_that_another_one_begins_or_ends_with_is_not_exported(monkeypatch):
    (name,) = exported().targets
    monkeypatch.setattr("xlakernel.core.programs.export.registered_targets", lambda: [name[:-1], name[1:], name])
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
    assert program.exported.has_vjp() and loaded.exported.has_vjp()
    assert loaded.vjp().call(x, x)[0].tolist() == program.vjp().call(x, x)[0].tolist() == [0, 2, 4]
    assert jax.grad(lambda x: (x * loaded.call(x)).sum())(x).tolist() == [0, 4, 8]
    without = deserialize(program.serialize())
    assert not without.exported.has_vjp()
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
    """Numba freezes a helper's default of this type without examining it."""


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
    with pytest.raises(ExportError, match=r"lowered before something that the kernel .*reads_global refers to changed"):
        export(jitted)(X)  # JAX has what it lowered before


def test_a_kernel_is_exported_where_an_equal_one_changed_since():
    def make(factor):
        @numba.njit
        def scaled(x, out):
            for i in range(x.size):
                out[i] = factor * x[i]

        def assign(value):
            nonlocal factor
            factor = value

        return numba_kernel(scaled, outs=same), assign

    (first, assign), (second, assign_second) = make(2), make(2)
    programs = [jax.jit(run) for run in (first, second)]
    for program in programs:
        program(jnp.ones(3))
    assign(3)
    assert exported(programs[1]).call(jnp.ones(3)).tolist() == [2, 2, 2]
    third, _ = make(2)
    assign_second(3)
    assert exported(third).call(jnp.ones(3)).tolist() == [2, 2, 2]


@numba.njit
def early(value):
    return value * FACTOR


@numba.njit
def calls_early(x, out):
    for i in range(x.size):
        out[i] = early(x[i])


def test_a_helper_that_was_compiled_separately_is_exported(monkeypatch):
    early(1.0)
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert exported(numba_kernel(calls_early, outs=same)).call(jnp.ones(3)).tolist() == [3, 3, 3]


def test_a_kernel_without_references_is_exported():
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
        ({"format": 99}, "exported by another xlakernel-numba, whose recipes are of format 99"),
        ({"kernel": {"module": "no.such.module", "qualname": "f"}}, r"module no\.such\.module cannot be imported"),
        ({"kernel": {"module": "math", "qualname": "nothing"}}, "math .* has nothing under the name nothing"),
        ({"kernel": {"module": "math", "qualname": "sin"}}, "math .* has a builtin_function_or_method under the"),
        ({"kernel": {"module": "jax./tmp/other", "qualname": "f"}}, "'jax./tmp/other' is not the name of a module"),
        ({"kernel": {"module": "", "qualname": "f"}}, "'' is not the name of a module"),
        (
            {"kernel": {"module": 3, "qualname": "f"}},
            "has the kernel {'module': 3, .*}, which is not a valid reference",
        ),
        ({"kernel": {"module": "math"}}, "has the kernel {'module': 'math'}, which is not a valid reference"),
        ({"kernel": {"pickle": "not one"}}, "has a pickle that cannot be decoded"),
        ({"kernel": {"pickle": "AAAA"}}, "cannot be made from its recipe: UnpicklingError"),
        ({"kernel": []}, r"has the kernel \[\], which is not a valid reference"),
        ({"checks": None}, "cannot be made from its recipe: TypeError"),
        ({"imports": ["no.such.module"]}, r"module no\.such\.module cannot be imported"),
        ({"arguments": [["input", 0, "float32", 1, ""]]}, "passes the arguments"),
        (
            {"arguments": [["input", 0, "float32", 1, ""], ["output", 7, "float32", 1, ""]]},
            "passes the arguments",
        ),
        (
            {"arguments": [["input", 0, "float32", 1, ""], ["other", 0, "float32", 1, ""]]},
            "passes the arguments",
        ),
        (
            {"arguments": [["input", 0, "floaty", 1, ""], ["output", 0, "float32", 1, ""]]},
            "cannot be made from its recipe",
        ),
        ({"mode": {}}, "cannot be made from its recipe: KeyError"),
        ({"checks": {"python": "3.0", "bytecode": ""}}, "was exported by Python 3.0; this is Python 3"),
    ],
)
def test_a_kernel_that_cannot_be_rebuilt_is_refused(changes, message):
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
print(alone.exported.nr_devices, jax.jit(mapped(alone.call))(x).tolist())
for function in (f, alone.call):
    try:
        mapped(function, out_specs=P())(x)
    except ValueError as error:
        print("refused", "replicated" in str(error))
    total = mapped(lambda x: jax.lax.psum(function(x), "d"), out_specs=P())
    print(total(x).tolist())
whole = deserialize(export(jax.jit(mapped(f)))(x).serialize())
result = whole.call(x)
print(whole.exported.nr_devices, result.tolist(), len(result.sharding.device_set))
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


# What loading may do


KERNELS = """
import numba, pathlib

pathlib.Path(__file__).with_name("imported").touch()

@numba.njit
def triple(x, out):
    for i in range(x.size):
        out[i] = 3 * x[i]
"""


@pytest.fixture
def importable(tmp_path, monkeypatch):
    """Return the bytes of a program with a kernel of an unloaded module, and the file that the module writes."""
    name = f"kernels_{next(numbers)}"
    (tmp_path / f"{name}.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    blob = exported(numba_kernel(module.triple, outs=same)).serialize()
    (tmp_path / "imported").unlink()
    monkeypatch.delitem(sys.modules, name)
    number = f"{next(numbers):04}".encode()
    targets, program, _ = unpack(blob)
    (target,) = targets
    renamed = target.name[:-4] + number.decode()
    program = program.replace(target.name.encode(), renamed.encode())
    return name, pack([type(target)(renamed, "cpu", target.recipe)], program), tmp_path / "imported"


def test_a_module_that_is_not_allowed_is_not_imported(importable):
    name, blob, mark = importable
    for allow in ((), ["another"], [name + "s"], [f"{name}.below"]):
        with pytest.raises(ExportError, match=f"has to import {name}, which allow= does not name"):
            deserialize(blob, allow=allow)
    assert not mark.exists()
    assert deserialize(blob, allow=[name]).call(jnp.ones(3)).tolist() == [3, 3, 3]
    assert mark.exists()


class Explosive:
    """Its unpickling is recorded."""

    def __reduce__(self):
        return explode, ()


exploded = []


def explode():
    exploded.append(True)
    return ()


def with_pickle(pickled):
    return altered(kernel={"pickle": base64.b64encode(pickle.dumps(pickled)).decode()})


def test_a_pickle_that_is_not_allowed_is_not_opened():
    exploded.clear()
    blob = with_pickle(Explosive())
    with pytest.raises(ExportError, match=r"unpickle the kernel .*double \(sha256:[0-9a-f]{64}\)") as caught:
        deserialize(blob, allow=["packages", "test_export_here", __name__])
    assert not exploded
    digest = re.search("sha256:[0-9a-f]+", str(caught.value))[0]
    with pytest.raises(ExportError):
        deserialize(blob, allow=[digest, __name__])
    assert exploded


def test_a_pickled_kernel_is_allowed_by_its_digest():
    @numba.njit
    def local(x, out):
        for i in range(x.size):
            out[i] = 11 * x[i]

    (target,), program, _ = unpack(exported(numba_kernel(local, outs=same)).serialize())
    other = target.name[:-4] + f"{next(numbers):04}"
    blob = pack([type(target)(other, "cpu", target.recipe)], program.replace(target.name.encode(), other.encode()))
    with pytest.raises(ExportError, match="None of these steps was taken") as caught:
        deserialize(blob, allow=())
    allow = re.findall("sha256:[0-9a-f]{64}", str(caught.value))
    assert deserialize(blob, allow=allow).call(jnp.ones(3)).tolist() == [11, 11, 11]


def test_no_other_pickle_of_a_recipe_hides_the_one_that_is_opened():
    exploded.clear()
    harmless = pickle.dumps(())
    fields = unpack(with_pickle(Explosive()))[0][0].recipe.data
    blob = altered(kernel=fields["kernel"], other={"pickle": base64.b64encode(harmless).decode()})
    with pytest.raises(ExportError, match="unpickle the kernel"):
        deserialize(blob, allow=[f"sha256:{hashlib.sha256(harmless).hexdigest()}", __name__])
    assert not exploded


def test_imports_are_a_list(importable):
    name, _, mark = importable
    for allow in (None, [__name__]):
        with pytest.raises(ExportError, match="not a list of names of modules"):
            deserialize(altered(imports={name: 1}), allow=allow)
    assert not mark.exists()


def test_kernels_are_compared_before_any_pickle_is_opened_or_kernel_compiled(importable):
    """Another kernel of the program has changed."""
    exploded.clear()
    _, blob, _ = importable
    (target,), program, _ = unpack(blob)
    (pickled,), _, _ = unpack(with_pickle(Explosive()))
    target.recipe.data["checks"]["bytecode"] = "0" * 32
    before = registered_targets()
    with pytest.raises(ExportError, match="is not the one that was exported"):
        deserialize(pack([pickled, target], program))
    assert not exploded
    assert registered_targets() == before


def test_no_function_is_found_through_a_module_that_imports_it(importable):
    """The program names the module that defines it."""
    name, blob, _ = importable
    module = importlib.import_module(name)
    module.stranger = double
    (target,), program, _ = unpack(blob)
    target.recipe.data["kernel"]["qualname"] = "stranger"
    with pytest.raises(ExportError, match="under the name stranger"):
        deserialize(pack([target], program))


@pytest.mark.parametrize("allow", ["kernels", b"kernels", 3, [3], [None]])
def test_allow_is_a_collection_of_names(allow):
    with pytest.raises(ArgumentError, match=r"allow is .*; expected a collection of strings"):
        deserialize(exported().serialize(), allow=allow)


WRONG = [None, True, -1, 2**70, 1e308, "", "\0", "../x", [], [[]], {}, {"module": "os"}, {"pickle": 3}]


def mutations(data, random):
    """Yield the recipe with one of its values replaced, at any depth."""
    for _ in range(150):
        changed = json.loads(json.dumps(data))
        place = changed
        while True:
            key = random.choice(list(place)) if isinstance(place, dict) else random.randrange(len(place))
            if not isinstance(place[key], (dict, list)) or not place[key] or random.random() < 0.3:
                break
            place = place[key]
        place[key] = random.choice(WRONG)
        yield changed


def test_recipes_of_any_content_are_refused_as_export_errors():
    (target,), _, _ = unpack(altered())
    for changed in mutations(target.recipe.data, random.Random(0)):
        with contextlib.suppress(ExportError):  # some changes change nothing
            deserialize(altered(**changed))
