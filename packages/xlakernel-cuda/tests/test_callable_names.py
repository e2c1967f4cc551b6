"""Names of the targets of functions: equal for equal work, and different for any other."""

import functools
import subprocess
import sys
import textwrap
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core.identity.fingerprint import examine, fingerprint
from xlakernel.cuda import cuda_callable

cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
gpu = pytest.importorskip("xlakernel.core.backend.gpu", exc_type=ImportError)
target = pytest.importorskip("xlakernel.core.gpu.target", exc_type=ImportError)

X = jax.ShapeDtypeStruct((4,), jnp.float32)
Y = jax.ShapeDtypeStruct((4, 1), jnp.float32)


@pytest.fixture
def launchable(monkeypatch):
    """Return a function that wraps another one and returns the `Launchable` for arrays and static scalars."""
    seen = []
    for module in (gpu, target):  # the second one where a recording is registered again
        monkeypatch.setattr(module, "register", lambda launchable, **_: seen.append(launchable))

    def make(func, inputs=(X,), outs=(X,), static=None, **options):
        wrapped = cuda_callable(func, outs, **{"arrays": as_it_is, **options})
        wrapped.xlakernel.target(inputs, outs, static or {})
        return seen[-1]

    return make


@pytest.fixture
def name(launchable):
    return lambda *args, **options: launchable(*args, **options).name


def as_it_is(buffer):
    return buffer


def launch(x, out, stream):
    launch_all(kernel, x, out, stream)


def launch_all(kernel, x, out, stream):
    kernel[1, FACTOR, stream](x, out)


FACTOR = 2


@cuda.jit
def kernel(x, out):
    out[0] = FACTOR * x[0]


def closing_over(value):
    def inner(x, out, stream):
        return value

    return inner


def test_the_name_has_the_function_and_its_arrays(name):
    assert name(launch).startswith(f"xlakernel.cuda/{__name__}.launch(i0 float32[4], o0 float32[4])#")
    assert name(launch) == name(launch)


@pytest.mark.parametrize(
    "options",
    [
        {"inputs": (Y,)},
        {"outs": (Y,)},
        {"inputs": (), "outs": (X, X)},
        {"static": {"n": np.int64(3)}},
        {"record": True},
        {"arrays": lambda buffer: buffer.ptr},
        {"arrays": "numba"},
        {"stream": "numba"},
        {"stream": int},
    ],
    ids=["inputs", "outs", "split otherwise", "static", "record", "constructor", "arrays", "stream", "handle"],
)
def test_whatever_a_recording_depends_on_is_in_the_name(name, options):
    assert name(launch, **options) != name(launch)


def test_static_scalars_that_are_equal_in_python_have_names_of_their_own(name):
    values = [np.int64(1), np.float64(1), np.bool_(True), np.float32(1), np.float64(0.0), np.float64(-0.0)]
    names = [name(launch, static={"n": value}) for value in values]
    assert len(set(names)) == len(values)


def test_a_global_of_a_kernel_or_a_helper_is_part_of_it(name, monkeypatch):
    before = name(launch)
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert name(launch) != before


def test_what_is_closed_over_is_part_of_it(name):
    equal = [name(closing_over(value)) for value in (1, 1)]
    assert equal[0] == equal[1]
    assert name(closing_over(2)) != equal[0]
    things = [object(), object()]
    assert len({name(closing_over(thing)) for thing in (*things, *things)}) == 2


class Model:
    """An object with device arrays and settings."""

    def __init__(self):
        self.weights, self.steps, self.parts = [object()], 3, {"rate": 0.5}

    def launch(self, x, out, stream):
        return self.weights, self.steps, self.parts


@pytest.mark.parametrize("method", [True, False], ids=["method", "closure"])
@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "weights", [object()]),
        lambda model: setattr(model, "steps", 4),
        lambda model: model.parts.update(rate=0.25),
    ],
    ids=["an object", "a number", "a number in a container"],
)
def test_the_state_of_an_object_is_part_of_it(name, change, method):
    model = Model()
    func = model.launch if method else closing_over(model)
    before, old = name(func), model.weights  # which a plan keeps
    assert name(func) == before
    change(model)
    assert name(func) != before
    assert old


def test_what_is_recorded_and_where_it_looks_for_arrays(launchable):
    found = launchable(launch, static={"n": np.int64(3)}, record=True)
    assert (found.label, found.record) == ("launch", True)
    assert found.place == f"{__file__}:{launch.__code__.co_firstlineno}"
    assert launch in found.closed_over
    assert [(a.source, a.index, a.dtype, a.shape) for a in found.arrays] == [
        ("input", 0, "float32", (4,)),
        ("output", 0, "float32", (4,)),
    ]


# Objects that a function refers to


@functools.cache
def cached():
    return FACTOR


# Stand-ins with the names and attributes of the real ones, which test_libraries.py has.
def stand_in(where, kind, /, **attributes):
    made = type(kind, (), {"__module__": where, "__qualname__": kind})()
    vars(made).update(attributes)
    return made


RAW = {"file_path": None, "options": (), "backend": "nvrtc", "enable_cooperative_groups": False}


def raw_kernel(code, **changes):
    return stand_in("cupy._core.raw", "RawKernel", code=code, name="k", **(RAW | changes))


def warp_kernel(func, **changes):
    module = stand_in("warp._src.context", "Module", options={"fast_math": False})
    given = {"key": "k", "func": func, "options": {}, "module": module, "sig": "f"} | changes
    return stand_in("warp._src.context", "Kernel", **given)


def content(thing):
    return fingerprint(closing_over(thing))


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (raw_kernel("a"), raw_kernel("a"), raw_kernel("b")),
        (raw_kernel("a"), raw_kernel("a"), raw_kernel("a", options=("-G",))),
        (warp_kernel(as_it_is), warp_kernel(as_it_is), warp_kernel(stand_in)),
        (warp_kernel(as_it_is), warp_kernel(as_it_is), warp_kernel(as_it_is, sig="d")),
        (functools.partial(int, 1), functools.partial(int, 1), functools.partial(int, 2)),
        (kernel, kernel, cuda.jit(fastmath=True)(kernel.py_func)),
    ],
    ids=["code", "options", "function", "types", "partial", "numba"],
)
def test_kernels_of_libraries_are_identified_by_their_code(one, same, other):
    assert not examine(closing_over(one)).unknown
    assert content(one) == content(same) != content(other)


@pytest.mark.parametrize(
    "thing",
    [
        raw_kernel(None, file_path="kernels.cu"),
        stand_in("cupy._core.raw", "RawKernel", code="one that lacks attributes"),
        stand_in("mine", "RawKernel", code="k", name="k", **RAW),
        object(),
    ],
    ids=["a file's", "another version's", "someone else's", "no kernel"],
)
def test_what_may_be_anything_is_itself_only(thing):
    assert examine(closing_over(thing)).unknown == [thing]


def test_a_cache_is_its_function(name, monkeypatch):
    assert not examine(closing_over(cached)).unknown
    before = content(cached)
    monkeypatch.setitem(globals(), "FACTOR", 5)
    assert content(cached) != before


@pytest.mark.parametrize("library", ["cupy", "cupyx", "warp", "torch", "cuda.bindings.driver", "cuda.core"])
def test_modules_of_libraries_are_not_walked_into(library, monkeypatch):
    for name in ("cupy", "torch", "warp"):  # as if they were installed: a user's own package has no version
        package = types.ModuleType(name)
        package.__version__ = "1"
        monkeypatch.setitem(sys.modules, name, package)
    module = types.ModuleType(library)
    module.ptr = module.sin = object()  # which the function below has among its names
    assert not examine(using(module)).unknown
    assert examine(using(types.SimpleNamespace(ptr=1))).unknown


def test_a_users_own_package_called_cuda_is_walked_into():
    module = types.ModuleType("cuda.mine")
    module.sin = object()
    assert examine(using(module)).unknown == [module.sin]


def using(library):
    def inner(x, out, stream):
        library.sin(x.ptr)

    return inner


@pytest.mark.process
def test_another_process_gives_the_same_name(tmp_path):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            from numba import cuda
            from xlakernel.core.identity.fingerprint import fingerprint

            @cuda.jit
            def kernel(x, out):
                out[0] = x[0]

            def launch(x, out, stream):
                t = cuda.device_array(x.shape, x.dtype)
                kernel[1, 1, stream](x, t)

            def content():
                return fingerprint((launch, "numba", None))
            """
        )
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import mine"]
    command[-1] += "; print(mine.content())"
    one, other = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert one == other != ""
