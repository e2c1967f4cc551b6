"""Recipes of functions that launch work: loading in another process, and refusals."""

import functools
import importlib
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core.errors import ExportError
from xlakernel.cuda import _callable_export, cuda_callable

gpu = pytest.importorskip("xlakernel.core.backend.gpu", exc_type=ImportError)
target = pytest.importorskip("xlakernel.core.gpu.target", exc_type=ImportError)
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

X = jax.ShapeDtypeStruct((4,), jnp.float32)
SOURCE = """
    from numba import cuda
    from xlakernel.cuda import cuda_callable

    FACTOR = 2

    @cuda.jit
    def kernel(x, out):
        out[0] = FACTOR * x[0]

    def launch(x, alpha, out, stream):
        kernel[1, 1, stream](x, out)

    def as_it_is(buffer):
        return buffer

    @lambda f: cuda_callable(f, lambda x: x, arrays=as_it_is)
    def decorated(x, out, stream):
        "Stands for a function that launches something."
    """


@pytest.fixture
def registered(monkeypatch):
    """The registered launchables, each with a flag for debug mode."""
    seen = []
    for module in (gpu, target):  # the second one where a recording is registered again
        monkeypatch.setattr(module, "register", lambda launchable, *, once, debug: seen.append((launchable, debug)))
    return seen


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """A module of a user's, and a function that loads it anew with other source."""
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
def recipe(registered):
    """Return a function that returns the recipe of what it wraps."""

    def write(func, *, static=None, debug=False, **options):
        wrapped = func if hasattr(func, "xlakernel") else cuda_callable(func, X, **options)
        wrapped.xlakernel.target([X], [X], static or {}, debug=debug)
        return registered[-1][0].recipe()

    return write


def test_a_function_of_a_module_is_recorded_again(module, recipe, registered):
    mine = module()
    static = {"alpha": np.float32(1.5)}
    found = recipe(mine.launch, static=static, debug=True, record=True, arrays=mine.as_it_is)
    assert found.module == "xlakernel.cuda._callable_export"
    (exported, _), again = registered[-1], module()
    _callable_export.prepare("the name in the program", found.data)()
    rebuilt, debug = registered[-1]
    assert debug
    assert rebuilt.name == "the name in the program"
    assert (rebuilt.label, rebuilt.place, rebuilt.record) == (exported.label, exported.place, True)
    assert rebuilt.arrays == exported.arrays
    assert rebuilt.launch.function is again.launch
    assert rebuilt.launch.adapter.arrays is again.as_it_is
    assert rebuilt.launch.static == static
    assert type(rebuilt.launch.static["alpha"]) is np.float32


def test_a_recipe_is_made_of_what_json_has(module, recipe):
    import json

    data = dict(recipe(module().launch, static={"alpha": np.int64(2)}, arrays="numba").data)
    assert json.loads(json.dumps(data)) == data


def test_a_decorated_function_is_found_under_its_name(module, recipe, registered):
    data = recipe(module().decorated).data
    _callable_export.prepare("again", data)()
    assert registered[-1][0].label == "decorated"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[1, 1, stream]", "[2, 1, stream]"),
        ("FACTOR = 2", "FACTOR = 3"),
        ("out[0] = FACTOR", "out[1] = FACTOR"),
        ("return buffer", "return buffer.ptr"),
        ("@cuda.jit", "@cuda.jit(fastmath=True)"),
    ],
)
def test_a_function_that_changed(module, recipe, before, after):
    mine = module()
    data = dict(recipe(mine.launch, static={"alpha": np.int64(2)}, arrays=mine.as_it_is).data)
    module("# a comment changes nothing\n" + textwrap.dedent(SOURCE))
    _callable_export.prepare("again", data)()
    module(SOURCE.replace(before, after))
    with pytest.raises(ExportError, match=r"launch .* is not the one that was exported: its code has changed"):
        _callable_export.prepare("again", data)()


def test_missing_functions_are_refused(module, recipe):
    mine = module()
    data = dict(recipe(mine.launch, static={"alpha": np.int64(2)}, arrays="numba").data)
    module("launch = 3")
    with pytest.raises(ExportError, match=r"has a int under the name launch"):
        _callable_export.prepare("again", data)()
    with pytest.raises(ExportError, match=r"module nowhere_at_all cannot be imported"):
        _callable_export.prepare("again", data | {"function": {"module": "nowhere_at_all", "qualname": "f"}})()
    with pytest.raises(ExportError, match=r"recipes are of format 99; this one reads format"):
        _callable_export.prepare("again", data | {"format": 99})()
    with pytest.raises(ExportError, match=r"exported by Python 3\.0; this is Python 3\."):
        _callable_export.prepare("again", data | {"checks": {**data["checks"], "python": "3.0"}})()


def as_it_is(buffer):
    return buffer


def at_the_top(x, out, stream):
    """Stands for a function that launches something."""


UNKNOWN = object()


def with_something_unknown(x, out, stream):
    return UNKNOWN


NUMBER = 1


def with_a_number(x, out, stream):
    return NUMBER


@pytest.mark.parametrize(
    "func", [lambda x, out, stream: None, functools.partial(at_the_top)], ids=["a lambda", "a partial"]
)
def test_functions_without_a_name(recipe, func):
    with pytest.raises(ExportError, match=r"cannot be imported by its name.*top level of a module"):
        recipe(func, arrays=as_it_is)


def test_functions_inside_of_others(recipe):
    def inner(x, out, stream):
        """Stands for a function that launches something."""

    with pytest.raises(ExportError, match=r"inner cannot be imported by its name"):
        recipe(inner, arrays=as_it_is)


@pytest.mark.parametrize("what", ["arrays", "stream"])
def test_constructors_without_a_name(recipe, what):
    with pytest.raises(ExportError, match=rf"{what}=.* of the function .*at_the_top cannot be imported"):
        recipe(at_the_top, **({"arrays": as_it_is} | {what: lambda value: value}))


def test_what_refers_to_something_unknown(recipe):
    with pytest.raises(ExportError, match=r"refers to <object object at .*> of type object, .*inside the function"):
        recipe(with_something_unknown, arrays=as_it_is)


def test_what_changed_since_it_was_recorded(registered, monkeypatch):
    cuda_callable(with_a_number, X, arrays=as_it_is).xlakernel.target([X], [X], {})
    registered[-1][0].recipe()
    monkeypatch.setitem(globals(), "NUMBER", 2)
    with pytest.raises(ExportError, match=r"lowered before something that the function .* refers to changed"):
        registered[-1][0].recipe()
