"""Recipes of kernels in exported programs: round trips, and refusals."""

import importlib
import json
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp

from xlakernel.core import export
from xlakernel.core.errors import ExportError
from xlakernel.core.ffi.registry import recipes_of
from xlakernel.warp import _callable_export, _export, jax_callable, jax_kernel, warp_kernel
from xlakernel.warp._functions import function as functions
from xlakernel.warp._internals import launches
from xlakernel.warp._internals.recognition import Unrecognised
from xlakernel.warp._kernels import gpu
from xlakernel.warp._kernels.adjoint import AdjointKernel
from xlakernel.warp._parameters import parameters_of

pytestmark = pytest.mark.versions

target = pytest.importorskip("xlakernel.core.gpu.target", exc_type=ImportError)

X, Y = jax.ShapeDtypeStruct((4,), jnp.float32), jax.ShapeDtypeStruct((2, 3), jnp.float32)
SOURCE = """
    from typing import Any
    import warp as wp

    FACTOR = 2.0

    @wp.kernel
    def scaled(x: wp.array(dtype=float), factor: float, out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = FACTOR * factor * x[i]

    @wp.kernel
    def generic(x: wp.array(dtype=Any), out: wp.array(dtype=Any)):
        i = wp.tid()
        out[i] = x[i]

    @wp.kernel
    def constant(x: wp.array(dtype=Any), out: wp.array(dtype=Any)):
        i = wp.tid()
        out[i] = x.dtype(FACTOR) * x[i]

    of_vectors = wp.overload(generic, [wp.array(dtype=wp.vec3)] * 2)

    def several(x: wp.array(dtype=Any), s: float, total: wp.array(dtype=wp.vec3), out: wp.array(dtype=Any)):
        wp.launch(generic, dim=x.shape, inputs=[x], outputs=[out])
    """


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """Return a function that loads a module of a user's, anew with other source."""
    name = "mine_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(source=SOURCE):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield load
    sys.modules.pop(name, None)


@pytest.fixture
def launchables(monkeypatch):
    """Registrations for a GPU, without one: pairs of a launchable and its debug mode."""
    seen = []

    def register(launchable, *, once, debug):
        seen.append((launchable, debug))

    # The last one where a recording is registered again.
    for module, name in ((gpu, "register_launchable"), (functions, "register"), (target, "register")):
        monkeypatch.setattr(module, name, register)
    for user in (gpu, functions):
        monkeypatch.setattr(user, "check_gpu", lambda name: None)
    return seen


def read_back(data):
    return json.loads(json.dumps(data, sort_keys=True))


def recipe_of(function, *args, **static):
    """Return the recipe of the one kernel of a program for the CPU, and the name of its target."""
    (name,) = export(jax.jit(lambda *args: function(*args, **static)))(*args).targets
    return read_back(recipes_of(name)["cpu"]().data), name


def same(x):
    return x


CALLS = {
    "static": (lambda m: warp_kernel(m.scaled, same), [X], [X], {"factor": np.float32(1.5)}),
    "init": (lambda m: warp_kernel(m.generic, same, output_init=np.float32("nan")), [X], [X], {}),
    "each init": (lambda m: warp_kernel(m.generic, same, output_init=(2,)), [X], [X], {}),
    "dims": (lambda m: warp_kernel(m.generic, same, launch_dims=lambda x: x.size - 1, block_dim=64), [X], [X], {}),
    "empty": (lambda m: warp_kernel(m.generic, same, launch_dims=0), [X], [X], {}),
    "alias": (lambda m: warp_kernel(m.generic, same, input_output_aliases={0: 0}), [X], [X], {}),
    "in_out": (lambda m: jax_kernel(m.generic, in_out_argnames=["out"]), [X, X], [X], {}),
    "overload": (lambda m: warp_kernel(m.of_vectors, same), [Y], [Y], {}),
    "0-d": (lambda m: warp_kernel(m.generic, same), [jax.ShapeDtypeStruct((), jnp.bfloat16)], None, {}),
}


def check_round_trip(kernel, inputs, outs, static, launchables, *, debug=False, prepare=_export.prepare):
    kernel.on("cuda").target(inputs, outs or inputs, static, debug=debug)
    before, _ = launchables[-1]
    prepare("given", read_back(before.recipe().data))()
    after, mode = launchables[-1]
    assert after is not before and (after.name, mode) == ("given", debug)
    assert (after.label, after.place, after.arrays, after.aliases) == (
        *(before.label, before.place, before.arrays, before.aliases),
    )
    assert after.launch.__self__ == before.launch.__self__  # the same kernel, threads, slots and fills
    assert read_back(after.recipe().data) == read_back(before.recipe().data)


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_launch_on_a_gpu_is_the_same_after_a_round_trip(module, launchables, call, debug):
    make, inputs, outs, static = CALLS[call]
    check_round_trip(make(module()).xlakernel, inputs, outs, static, launchables, debug=debug)


def test_an_adjoint_is_the_same_after_a_round_trip(module, launchables):
    kernel = module().of_vectors
    adjoint = AdjointKernel(kernel, parameters_of(kernel, "test"), aliases=((1, 1), (2, 2)), adjoint_of=1)
    check_round_trip(adjoint, [Y, Y, Y], [Y, Y, Y], {}, launchables)


def test_a_function_is_the_same_after_a_round_trip(module, launchables):
    function = jax_callable(module().several, num_outputs=2, in_out_argnames=["total"]).xlakernel
    given = [X, Y], [Y, X], {"s": np.float32(1.5)}
    check_round_trip(function, *given, launchables, debug=True, prepare=_callable_export.prepare)


# Refusals at export


@wp.kernel
def at_the_top(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i]


def test_kernels_inside_of_functions():
    @wp.kernel
    def inner(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i]

    with pytest.raises(ExportError, match=r"inner cannot be imported by its name.*Define it at the top level of a mod"):
        recipe_of(warp_kernel(inner, same), X)


def test_kernels_of_main(monkeypatch):
    monkeypatch.setattr(at_the_top.func, "__module__", "__main__")
    with pytest.raises(ExportError, match=r"__main__\.at_the_top cannot be imported by its name.*that can be imported"):
        recipe_of(warp_kernel(at_the_top, same), X)


def test_kernels_whose_name_is_another_ones(module):
    mine = module()
    kernel, mine.scaled = mine.scaled, mine.generic
    with pytest.raises(ExportError, match=r"scaled cannot be imported by its name"):
        recipe_of(warp_kernel(kernel, same), X, factor=1.0)


STATIC = """
    import warp as wp

    class Settings:
        factor = 2.0

    SETTINGS = {settings}

    @wp.kernel
    def scaled(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = wp.static({value}) * x[i]
    """
UNKNOWN = r"refers to <.*Settings object at .*> of type Settings, which cannot be compared between processes"


def test_an_object_in_a_static_expression(module):
    mine = module(STATIC.format(settings="Settings()", value="SETTINGS.factor"))
    with pytest.raises(ExportError, match=rf"export: the kernel .*scaled {UNKNOWN}\. Make it a number"):
        recipe_of(warp_kernel(mine.scaled, same), X)


def test_a_number_in_a_static_expression_that_became_an_object(module):
    data, _ = recipe_of(warp_kernel(module(STATIC.format(settings="3.0", value="SETTINGS")).scaled, same), X)
    module(STATIC.format(settings="Settings()", value="SETTINGS.factor"))
    with pytest.raises(ExportError, match=rf"cannot be compared with the one that was exported: it {UNKNOWN}"):
        _export.prepare("again", data)


def test_functions_inside_of_others():
    def inner(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        wp.launch(at_the_top, dim=x.shape, inputs=[x], outputs=[out])

    with pytest.raises(ExportError, match=r"inner cannot be imported by its name.*top level of a module"):
        export(jax.jit(jax_callable(inner)))(X)


def test_a_global_that_changed_since_the_kernel_was_compiled(module):
    mine = module()
    function = warp_kernel(mine.scaled, same)
    recipe_of(function, X, factor=1.0)
    mine.FACTOR = 3.0
    with pytest.raises(ExportError, match=r"lowered before something that the kernel .*scaled refers to changed"):
        recipe_of(function, X, factor=1.0)


@pytest.mark.parametrize("is_generic", [False, True])
def test_a_constant_that_changed_after_warp_compiled_the_kernel(module, is_generic):
    mine = module()
    kernel = mine.constant if is_generic else mine.scaled
    arrays = [wp.ones(4, dtype=float, device="cpu") for _ in range(2)]
    wp.launch(kernel, dim=4, inputs=[arrays[0]] if is_generic else [arrays[0], 1.0], outputs=arrays[1:], device="cpu")
    static = {} if is_generic else {"factor": 1.0}
    data, _ = recipe_of(warp_kernel(kernel, same), X, **static)
    mine.FACTOR = 3.0
    function = warp_kernel(kernel, same, launch_dims=3)
    with pytest.raises(ExportError, match=r"lowered before something that the kernel .* refers to changed"):
        recipe_of(function, X, **static)
    with pytest.raises(ExportError, match=r"Warp compiled the kernel .* before a global or a function that"):
        _export.prepare("again", data)


# Refusals at loading


@pytest.fixture
def written(module):
    return recipe_of(warp_kernel(module().scaled, same), X, factor=1.0)[0]


def test_a_loaded_kernel_can_be_exported_again(written, module):
    _export.prepare("under another name", written)()
    assert read_back(recipes_of("under another name")["cpu"]().data) == written


def test_a_recipe_of_another_format_is_refused(written):
    with pytest.raises(ExportError, match=r"another xlakernel-warp, whose recipes are of format 99; this one reads"):
        _export.prepare("again", written | {"format": 99})()


def test_an_object_that_is_no_kernel(written, module):
    module("scaled = 3")
    with pytest.raises(ExportError, match="has a int under the name scaled"):
        _export.prepare("again", written)()


def test_a_generic_kernel_that_has_other_parameters_now(module):
    data, _ = recipe_of(warp_kernel(module().of_vectors, same), Y)
    module("import warp as wp\n" + textwrap.dedent(SOURCE).replace("x: wp.array(dtype=Any), ", "").split("of_vec")[0])
    with pytest.raises(ExportError, match=r"its parameters were \(x: array\(ndim=1, dtype=vec3f\), out"):
        _export.prepare("again", data)()


def test_blocks_on_the_cpu_must_be_the_same(written):
    written["cpu_blocks"] = True
    with pytest.raises(ExportError, match=r"exported with warp.config.enable_cpu_blocks = True; other blocks"):
        _export.prepare("again", written)()


def test_blocks_on_the_cpu_must_be_the_same_for_a_function(module):
    run = jax_callable(module().several, num_outputs=2, in_out_argnames=["total"])
    data, _ = recipe_of(lambda x, total: run(x, 1.5, total), X, Y)
    assert data["cpu_blocks"] is launches.cpu_blocks()
    with pytest.raises(ExportError, match=r"the function mine_\w+\.several was exported with warp.config.enable_cpu_b"):
        _callable_export.prepare("again", data | {"cpu_blocks": not data["cpu_blocks"]})()


def test_an_unknown_warp_is_refused(written, monkeypatch):
    def entry(launch):
        raise Unrecognised("there is no native entry")

    monkeypatch.setattr(launches, "native_entry", entry)
    written["checks"]["warp"] = "1.0"
    message = rf"arguments that Warp 1.0 passes .* this is Warp {wp.__version__}, which passes others"
    with pytest.raises(ExportError, match=message):
        _export.prepare("again", written)()
