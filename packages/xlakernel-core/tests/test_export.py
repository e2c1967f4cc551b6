"""Exported programs: their bytes, programs without kernels, and the recipes of backends."""

import dataclasses
import importlib
import json
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

from xlakernel.command.install import install_command
from xlakernel.core import XLACustomKernel, deserialize, export
from xlakernel.core.config import is_exporting
from xlakernel.core.errors import ArgumentError, ExportError, KernelTypeError, MissingDependencyError
from xlakernel.core.ffi.registry import Recipe, ensure_registered, recipes_of
from xlakernel.core.programs import artifact
from xlakernel.core.programs.allowed import import_module, read_pickle
from xlakernel.core.programs.artifact import StoredTarget, pack, unpack

X = jax.ShapeDtypeStruct((3,), jnp.float32)
PAIR = (("float32", 1),)


def copy(x, out):
    out[0] = x[0]


def negate(x, out):
    for i in range(out.size):
        out[i] = -x[i]


def scale(x, *, by):
    return {"scaled": x * by}


@pytest.fixture
def blob():
    return export(jax.jit(jnp.sin))(X).serialize()


def test_a_program_without_kernels(blob):
    program = deserialize(blob)
    assert program.targets == ()
    assert program.call(jnp.zeros(3)).tolist() == [0, 0, 0]


def test_pytrees_and_keywords():
    program = deserialize(export(jax.jit(scale))(X, by=X).serialize())
    assert program.call(jnp.ones(3), by=jnp.arange(3.0))["scaled"].tolist() == [0, 1, 2]
    assert program.exported.out_tree == jax.tree.structure({"scaled": 0})


def test_symbolic_shapes():
    program = deserialize(export(jax.jit(jnp.sum))(*jax_export.symbolic_args_specs((X,), "n")).serialize())
    assert [program.call(jnp.ones(n)) for n in (1, 7)] == [1, 7]
    assert str(program.exported.in_avals[0].shape[0]) == "n"


def test_several_platforms():
    program = deserialize(export(jax.jit(jnp.sin), platforms=["cpu", "cuda", "tpu"])(X).serialize())
    assert program.platforms == ("cpu", "cuda", "tpu")
    assert program.call(jnp.zeros(3)).tolist() == [0, 0, 0]


def test_one_platform_by_its_name():
    assert export(jax.jit(jnp.sin), platforms="cuda")(X).platforms == ("cuda",)


def test_the_call_of_a_program_for_another_platform_is_refused():
    program = deserialize(export(jax.jit(jnp.sin), platforms=["tpu"])(X).serialize())
    with pytest.raises(ValueError, match="was exported for platforms"):
        program.call(jax.device_put(jnp.zeros(3), jax.devices("cpu")[0]))


def test_other_custom_calls_are_refused_unless_allowed():
    def program(x):
        return jax.ffi.ffi_call("somebody's", X)(x)

    with pytest.raises(ValueError, match="somebody's"):
        export(jax.jit(program))(X)
    allowed = jax_export.DisabledSafetyCheck.custom_call("somebody's")
    exported = export(jax.jit(program), disabled_checks=[allowed])(X)
    assert exported.exported.disabled_safety_checks == (allowed,)
    assert deserialize(exported.serialize()).targets == ()


def test_only_jitted_functions_are_exported():
    with pytest.raises(KernelTypeError, match=r"got <function scale .*export\(jax.jit\(f\)\)"):
        export(scale)


def test_platforms_have_the_names_of_jax():
    for platforms in ("gpu", ["cpu", "gpu"]):
        with pytest.raises(ArgumentError, match=r"platforms is .*; JAX's name of NVIDIA's GPUs is 'cuda'"):
            export(jax.jit(scale), platforms=platforms)


def test_platforms_and_orders_of_other_types():
    program = export(jax.jit(jnp.sin), platforms=(name for name in ["cuda"]))(X)
    assert program.platforms == ("cuda",)
    assert deserialize(program.serialize(vjp_order=np.int64(1))).exported.has_vjp()
    assert deserialize(program.serialize(vjp_order=True)).exported.has_vjp()
    assert not deserialize(program.serialize(vjp_order=False)).exported.has_vjp()


@pytest.mark.parametrize("order", [-1, "1", 1.0])
def test_an_order_of_derivatives_is_a_number(order):
    with pytest.raises(ArgumentError, match=r"vjp_order is .*; expected an integer of at least 0"):
        export(jax.jit(jnp.sin))(X).serialize(vjp_order=order)


@pytest.mark.parametrize("value", [jnp.ones((2, 2)), np.ones((2, 2)), "f", None], ids=["jax", "numpy", "str", "None"])
def test_arrays_and_names_are_not_exported(value):
    with pytest.raises(KernelTypeError, match=r"(?s)expected a function that jax.jit returned; got .*jax.jit\(f\)"):
        export(value)


def written_with(monkeypatch, version, program):
    with monkeypatch.context() as patch:
        patch.setattr(jax, "__version__", version)
        return pack([], program)


def with_other_operations(blob):
    """Return a program whose operations JAX cannot read, as those of a later version."""
    program = dataclasses.replace(deserialize(blob).exported, mlir_module_serialized=b"of the future")
    return bytes(program.serialize())


@pytest.mark.parametrize(
    "change", [lambda blob: b"of the future", with_other_operations], ids=["program", "operations"]
)
def test_a_program_of_a_later_jax_that_cannot_be_read(blob, monkeypatch, change):
    later = written_with(monkeypatch, "99.0.1", change(blob))
    message = rf"written with jax 99\.0\.1; this is {re.escape(jax.__version__)}, .*Load it with the version that"
    with pytest.raises(ExportError, match=f"(?s){message}"):
        deserialize(later)


def test_a_program_of_an_earlier_jax_that_cannot_be_read(monkeypatch):
    with pytest.raises(
        ExportError, match=r"(?s)written with jax 0\.1\.2; .*Load it with the version that wrote it, or export"
    ):
        deserialize(written_with(monkeypatch, "0.1.2", b"of the past"))


@pytest.mark.parametrize("version", ["0.1.2", "99.0.1", "99.0.1.dev1+local"])
def test_a_program_of_another_jax_that_can_be_read(blob, monkeypatch, version):
    program = deserialize(written_with(monkeypatch, version, unpack(blob)[1]))
    assert program.call(jnp.zeros(3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_the_error_of_a_missing_derivative_names_vjp_order(blob, jit):
    program = deserialize(blob)
    message = r"sin: .*without its derivative; write it with serialize\(vjp_order=1\)"
    for use in (jit(jax.grad(lambda x: program.call(x).sum())), lambda x: program.vjp()):
        with pytest.raises(ExportError, match=message):
            use(jnp.zeros(3))
    with pytest.raises(ExportError, match=message):
        program.serialize(vjp_order=1)
    constant = jax.grad(lambda x: jax.lax.stop_gradient(program.call(x)) @ x)
    assert jit(constant)(jnp.zeros(3)).tolist() == [0, 0, 0]


def test_a_program_with_its_derivative():
    program = deserialize(export(jax.jit(scale))(X, by=X).serialize(vjp_order=1))
    slope = jax.grad(lambda x: program.call(x, by=jnp.arange(3.0))["scaled"].sum())
    assert slope(jnp.ones(3)).tolist() == [0, 1, 2]


def test_a_program_without_its_derivative_takes_integers_and_keywords():
    program = deserialize(export(jax.jit(scale))(jax.ShapeDtypeStruct((3,), jnp.int32), by=X).serialize())
    assert program.call(jnp.arange(3), by=jnp.ones(3))["scaled"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda blob: b"", "these 0 bytes are not a program that xlakernel.core.export wrote"),
        (lambda blob: blob[8:], "not a program that xlakernel.core.export wrote"),
        (lambda blob: bytes(export(jax.jit(jnp.sin))(X).exported.serialize()), "Read programs of jax.export with"),
        (lambda blob: blob.replace(b"\r\n", b"\n", 1), "not a program"),
        (lambda blob: blob[:20], "damaged: the checksum of its 20 bytes differs"),
        (lambda blob: blob[:-1], r"damaged: the checksum of its \d+ bytes differs"),
        (lambda blob: blob + b"\0", r"damaged: the checksum of its \d+ bytes differs"),
        (lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]), "damaged"),
        (lambda blob: blob[:8] + b"\x01" + blob[9:], r"is damaged, or in format 1; xlakernel-core \S+ reads format 3"),
        (lambda blob: "text", "expected the bytes that serialize.* returned; got str"),
    ],
)
def test_other_bytes_are_refused(blob, damage, message):
    with pytest.raises(ExportError, match=message):
        deserialize(damage(blob))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_every_kind_are_accepted(blob, kind):
    assert deserialize(kind(blob)).exported.fun_name == "sin"


def test_unpack_returns_the_arguments_of_pack():
    targets = [StoredTarget("größe", "CUDA", Recipe("xlakernel.x", {"a": [1, None, "π"]}))]
    assert unpack(pack(targets, b"program"))[:2] == (targets, b"program")


@pytest.fixture
def backend(monkeypatch):
    """A backend that records the targets that it makes again."""
    module = types.ModuleType("xlakernel.of_the_export_test._export")
    module.rebuilt = []
    module.prepare = lambda name, data: lambda: module.rebuilt.append((name, data))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def with_targets(blob, *targets):
    return pack(targets, unpack(blob)[1])


def test_the_backend_makes_targets_that_are_not_registered(blob, backend, new_name, compile_handler):
    here, missing = new_name(), new_name()
    ensure_registered(here, "cpu", lambda: compile_handler(negate, PAIR, PAIR))
    targets = [StoredTarget(name, "cpu", Recipe(backend.__name__, {"of": name})) for name in (here, missing)]
    program = deserialize(with_targets(blob, *targets))
    assert backend.rebuilt == [(missing, {"of": missing})]
    assert program.targets == (here, missing)


def test_a_loaded_program_takes_no_name_from_the_kernels_here(blob, backend, new_name, compile_handler):
    """The names in a program are not checked."""
    name = new_name()
    recipe = Recipe(backend.__name__, {"checks": "of negate"})
    backend.prepare = lambda name, data: (
        lambda: ensure_registered(name, "cpu", lambda: compile_handler(negate, PAIR, PAIR))
    )
    deserialize(with_targets(blob, StoredTarget(name, "cpu", recipe)))
    own = ensure_registered(name, "cpu", lambda: compile_handler(copy, PAIR, PAIR))
    assert own == ensure_registered(name, "cpu", lambda: compile_handler(copy, PAIR, PAIR)) != name
    x = jnp.ones(1)
    results = [jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((1,), jnp.float32))(x)[0] for target in (name, own)]
    assert results == [-1, 1]
    again = Recipe(backend.__name__, {**recipe.data, "kernel": {"pickle": "AAAA"}, "dims": [5]})
    deserialize(with_targets(blob, StoredTarget(name, "cpu", again)))
    other = StoredTarget(name, "cpu", Recipe(backend.__name__, {"checks": "of copy"}))
    with pytest.raises(ExportError, match="another kernel in a program that was loaded before"):
        deserialize(with_targets(blob, other))


def test_kernels_for_devices_that_are_not_here_are_left_out(blob, backend, monkeypatch):
    def devices(platform):
        raise RuntimeError(f"no {platform}")

    monkeypatch.setattr(jax, "devices", devices)
    kernel = StoredTarget("elsewhere", "CUDA", Recipe(backend.__name__, {}))
    program = deserialize(with_targets(blob, kernel))
    assert backend.rebuilt == []
    assert unpack(program.serialize())[0] == [kernel]


def test_a_backend_that_is_not_installed_is_named(blob, new_name):
    kernel = StoredTarget(new_name(), "cpu", Recipe("xlakernel.absent._export", {}))
    with pytest.raises(
        MissingDependencyError, match=rf"needs xlakernel-absent, .* `{re.escape(install_command('absent'))}`"
    ):
        deserialize(with_targets(blob, kernel))


@pytest.mark.parametrize(
    "module",
    [
        *("os", "xlakernel", "xlakernelx.y", "not.xlakernel.numba", "xlakernelx.numba._export", "xlakernel.numba"),
        *("xlakernel.command.__main__", "xlakernel.core.__main__", "xlakernel.core.testing", "xlakernel.core._export"),
        *("xlakernel.numba._compile", "xlakernel.numba._export.more", "xlakernel..numba._export"),
    ],
)
def test_a_recipe_imports_only_backends(blob, new_name, module):
    with pytest.raises(ExportError, match="not one of xlakernel's"):
        deserialize(with_targets(blob, StoredTarget(new_name(), "cpu", Recipe(module, {}))))


@pytest.mark.parametrize(
    "data",
    [
        *({"imports": imports} for imports in (None, "os", {"os": 1}, [3], [["os"]], ["os/path"], ["a:b"])),
        *({"kernel": kernel} for kernel in (None, "os", [], {}, {"pickle": 3}, {"pickle": "!"}, {"module": "os"})),
        {"kernel": {"module": "os", "qualname": "path", "pickle": ""}},
        {"function": {"pickle": "AAAA"}},
        {"stream": {"module": ["os"], "qualname": "path"}},
    ],
    ids=repr,
)
@pytest.mark.parametrize("allow", [None, (), ["os"]], ids=repr)
def test_a_recipe_whose_references_are_malformed_is_refused(blob, backend, new_name, data, allow):
    with pytest.raises(ExportError, match=r"which is not a valid reference|not a list of names|cannot be decoded"):
        deserialize(with_targets(blob, StoredTarget(new_name(), "cpu", Recipe(backend.__name__, data))), allow=allow)
    assert backend.rebuilt == []


def test_imports_and_pickles_are_compared_with_allow_when_used(blob, backend, new_name):
    """The backend reads another field than those that are checked first."""

    def prepare(name, data):
        if "module" in data["other"]:
            return import_module("the kernel", data["other"]["module"])
        return read_pickle("the kernel", data["other"]["pickle"])

    backend.prepare = prepare
    for other in ({"module": "this"}, {"pickle": "AAAA"}):
        target = StoredTarget(new_name(), "cpu", Recipe(backend.__name__, {"other": other}))
        with pytest.raises(
            ExportError, match=r"has to (import this|unpickle the kernel .*), which allow= does not name"
        ):
            deserialize(with_targets(blob, target), allow=["os"])
    assert "this" not in sys.modules


def test_registered_targets_need_to_be_allowed_too(blob, backend, new_name, compile_handler):
    name = new_name()
    ensure_registered(name, "cpu", lambda: compile_handler(negate, PAIR, PAIR))
    blob = with_targets(blob, StoredTarget(name, "cpu", Recipe(backend.__name__, {"imports": ["kernels.of_mine"]})))
    with pytest.raises(ExportError, match=r"import kernels\.of_mine, which allow= does not name"):
        deserialize(blob, allow=())
    for allow in (None, ["kernels"], iter(["kernels"]), {"kernels.of_mine": "a mapping"}):
        assert deserialize(blob, allow=allow).targets == (name,)


@pytest.mark.parametrize(
    "entry",
    ["", ".", "a..b", "kernels/mine", "sha256:", "sha256:" + "A" * 64, "sha256:" + "a" * 63, "a" * 64 + ":b", "a b"],
)
def test_allow_takes_modules_and_digests(blob, entry):
    with pytest.raises(
        ArgumentError, match=r'allow has .*; expected the name of a module, .* or "sha256:" and 64 digits'
    ):
        deserialize(blob, allow=["kernels", entry])


def test_missing_flatbuffers_is_an_error_with_a_command(blob, monkeypatch):
    program = export(jax.jit(jnp.sin))(X)
    real = importlib.import_module

    def without(name, package=None):
        if name == "flatbuffers":
            raise ModuleNotFoundError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    for ask in (program.serialize, lambda: deserialize(blob)):
        with pytest.raises(MissingDependencyError, match=re.escape(install_command("core", "export"))):
            ask()


@pytest.fixture
def call_target(new_name, compile_handler):
    """Return a function that registers a handler with a recipe, and returns a program that calls it."""

    def call(recipe):
        name = new_name() + ' "größe\\π" '
        ensure_registered(name, "cpu", lambda: compile_handler(negate, PAIR, PAIR), recipe)
        return name, lambda x: jax.ffi.ffi_call(name, X)(x)

    return call


def test_the_recipe_of_a_target_is_made_when_it_is_exported(call_target, backend):
    asked = []

    def recipe():
        asked.append(True)
        return Recipe(backend.__name__, {"a": 1})

    name, program = call_target(recipe)
    assert recipes_of(name) == {"cpu": recipe}
    jax.jit(program)(jnp.ones(3))
    assert asked == []
    exported = export(jax.jit(program))(X)
    assert asked == [True]
    assert unpack(exported.serialize())[0] == [StoredTarget(name, "cpu", Recipe(backend.__name__, {"a": 1}))]
    assert deserialize(exported.serialize()).call(jnp.ones(3)).tolist() == [-1, -1, -1]


def test_a_target_without_a_recipe_is_refused(call_target):
    _, program = call_target(None)
    with pytest.raises(ExportError, match="cannot be made again in another process: it was registered without"):
        export(jax.jit(program))(X)


def test_is_exporting_is_true_during_export():
    seen = []
    op = XLACustomKernel("of the context test", replace=True)
    op.def_jax_kernel(lambda outs: seen.append(("lowered", is_exporting())) or (lambda x: x))

    @jax.custom_vjp
    def program(x):
        return op(x, outs=x)

    def backward(_, ct):
        seen.append(("derivative", is_exporting()))
        return (ct,)

    program.defvjp(lambda x: (program(x), None), backward)
    jitted = jax.jit(program)
    jitted(jnp.ones(3))
    exported = export(jitted)(X)
    assert seen == [("lowered", False), ("lowered", True)]
    seen.clear()
    exported.serialize(vjp_order=1)
    assert seen and all(exporting for _, exporting in seen)
    assert not is_exporting()


def repacked(header, program=b"program"):
    """Return an artifact with the right checksum."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return artifact._sealed(header, program)


HEADER = {"targets": [], "made with": {"jax": jax.__version__}}


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"{", b"\xff", b"[" * 100_000, b'{"targets": ' + b"9" * 10_000 + b"}", [], {}, "text", 3, None),
        *({**HEADER, "targets": targets} for targets in (None, 3, [3], [[]], [{}], {"a": 1}, "ab")),
        *({**HEADER, "made with": made_with} for made_with in (None, [], {}, "jax")),
        {**HEADER, "targets": [{"name": 1, "platform": "cpu", "module": "xlakernel.numba._export", "data": {}}]},
        {**HEADER, "targets": [{"name": "a", "platform": "cpu", "module": "xlakernel.numba._export", "data": []}]},
    ],
    ids=lambda header: repr(header)[:40],
)
def test_headers_of_any_content_are_refused(header):
    with pytest.raises(ExportError, match=r"was not written by xlakernel\.core\.export"):
        deserialize(repacked(header))


@pytest.mark.parametrize("program", [b"", b"program", b"\0" * 1000, b"\xff" * 64])
def test_a_program_that_jax_cannot_read_is_refused(program):
    with pytest.raises(ExportError, match=rf"(?s)this is {re.escape(jax.__version__)}, which cannot read it: "):
        deserialize(repacked(HEADER, program))


def test_every_flipped_byte_is_reported(blob):
    for place in range(len(blob)):
        flipped = blob[:place] + bytes([blob[place] ^ 1 << place % 8]) + blob[place + 1 :]
        message = "not a program that xlakernel.core.export wrote" if place < 8 else "program is damaged"
        with pytest.raises(ExportError, match=message):
            unpack(flipped)


def test_every_truncation_is_reported(blob):
    for size in range(1, len(blob)):
        with pytest.raises(ExportError, match=rf"program is damaged: the checksum of its {size} bytes differs"):
            unpack(blob[:size])


def test_an_error_of_a_backend_is_an_export_error(blob, backend, new_name):
    def prepare(name, data):
        raise data["missing"]

    backend.prepare = prepare
    with pytest.raises(ExportError, match="cannot be made from its recipe: KeyError: 'missing'"):
        deserialize(with_targets(blob, StoredTarget(new_name(), "cpu", Recipe(backend.__name__, {}))))


def test_all_targets_are_compared_before_any_is_made(blob, backend, new_name):
    def prepare(name, data):
        if data["changed"]:
            raise ExportError("changed")
        return lambda: backend.rebuilt.append(name)

    backend.prepare = prepare
    targets = [
        StoredTarget(new_name(), "cpu", Recipe(backend.__name__, {"changed": changed})) for changed in (False, True)
    ]
    with pytest.raises(ExportError, match="changed"):
        deserialize(with_targets(blob, *targets))
    assert backend.rebuilt == []
