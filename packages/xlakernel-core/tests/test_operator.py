"""Operators as tables of kernels: registration, defaults, names and tags."""

import copy

import jax
import jax.numpy as jnp
import pytest

from xlakernel.core import KernelEntry, XLACustomKernel, operators
from xlakernel.core.config import PLATFORMS
from xlakernel.core.errors import (
    ArgumentError,
    BackendNotFoundError,
    DifferentiationError,
    DuplicateNameError,
    KernelTypeError,
    UnknownPlatformError,
    XLAKernelError,
)

X = jnp.arange(3.0)


def generator(outs, **static):
    return lambda *ins: ins[0]


def times(factor):
    """Return a generator of kernels that multiply by *factor*, which identifies them."""
    return lambda outs: lambda x: x * factor


SHORTHANDS = {
    "def_numba_kernel": (lambda op: op.def_numba_kernel(generator), [("cpu", "numba")]),
    "def_numba_cuda_kernel": (lambda op: op.def_numba_cuda_kernel(generator), [("gpu", "numba_cuda")]),
    "def_warp_kernel": (lambda op: op.def_warp_kernel(generator), [("gpu", "warp")]),
    "def_warp_kernel on cpu": (lambda op: op.def_warp_kernel(generator, platform="cpu"), [("cpu", "warp")]),
    "def_pallas_kernel": (lambda op: op.def_pallas_kernel("tpu", generator), [("tpu", "pallas")]),
    "def_jax_kernel": (lambda op: op.def_jax_kernel(generator), [(platform, "jax") for platform in PLATFORMS]),
    "def_kernel": (lambda op: op.def_kernel("mine", "cpu", generator), [("cpu", "mine")]),
}


@pytest.mark.parametrize("shorthand", SHORTHANDS)
def test_a_kernel_is_registered_for_its_platform_and_backend(op, shorthand):
    define, places = SHORTHANDS[shorthand]
    define(op)
    assert [(platform, backend) for platform, found in op._backends.kernels.items() for backend in found] == places
    for platform, backend in places:
        entry = op._backends.kernels[platform][backend]
        assert (entry.backend, entry.platform, entry.kernel_generator) == (backend, platform, generator)
        assert op.entry(platform, backend) is entry
        assert isinstance(entry, KernelEntry)
    assert op.defaults == dict(places)
    assert all(str(part) in repr(op) for part in (op.name, *places[0]))


@pytest.mark.parametrize(
    "define",
    [
        lambda op: op.def_numba_kernel(generator, asdefault=True),
        lambda op: op.def_warp_kernel(generator, asdefault=True, platform="cpu"),
        lambda op: op.def_pallas_kernel("cpu", generator, asdefault=True),
        lambda op: op.def_jax_kernel(generator, asdefault=True),
        lambda op: op.def_kernel("mine", "cpu", generator, asdefault=True),
        lambda op: op.def_kernel("mine", "cpu", generator, True),
    ],
)
def test_asdefault_makes_a_later_kernel_the_default(op, define):
    op.def_kernel("first", "cpu", generator)
    define(op)
    assert op.get_default("cpu") == op.available_backends("cpu")[1]


def test_the_first_kernel_is_the_default(op):
    assert op.get_default("cpu") is None
    assert op.defaults == {}
    assert op.available_backends("cpu") == []
    for backend in ("z", "a", "m"):
        op.def_kernel(backend, "cpu", generator)
    op.def_kernel("g", "gpu", generator)
    assert op.get_default("cpu") == "z"
    assert op.available_backends("cpu") == ["z", "a", "m"]
    assert op.defaults == {"cpu": "z", "gpu": "g"}


def test_set_default_holds_for_its_platform(op):
    op.def_jax_kernel(generator)
    for platform in ("cpu", "gpu"):
        op.def_kernel("mine", platform, generator)
    op.set_default("cpu", "mine")
    assert op.defaults == {"cpu": "mine", "gpu": "jax", "tpu": "jax"}
    op.set_default("cpu", "jax")
    assert op.get_default("cpu") == "jax"


def test_a_rejected_set_default_changes_nothing(op):
    op.def_jax_kernel(generator)
    with pytest.raises(BackendNotFoundError, match=r"no 'numba' kernel for platform 'cpu'; registered: \['jax'\]"):
        op.set_default("cpu", "numba")
    assert op.defaults == dict.fromkeys(PLATFORMS, "jax")


def test_a_backend_defined_again_keeps_its_place(op):
    op.def_kernel("a", "cpu", times(2))
    op.def_kernel("b", "cpu", times(3))
    op.def_kernel("a", "cpu", times(5))
    assert op.available_backends("cpu") == ["a", "b"]
    assert op(X, outs=X).tolist() == [0, 5, 10]


@pytest.mark.parametrize("platform", ["cuda", "rocm", "CPU", "", "metal", None, 1])
def test_an_unknown_platform_is_refused_everywhere(op, platform):
    op.def_jax_kernel(generator)
    for ask in (
        lambda: op.def_kernel("a", platform, generator),
        lambda: op.def_pallas_kernel(platform, generator),
        lambda: op.set_default(platform, "jax"),
        lambda: op.get_default(platform),
        lambda: op.available_backends(platform),
    ):
        with pytest.raises(UnknownPlatformError, match=f"{op.name}: unknown platform {platform!r}; allowed: 'cpu', "):
            ask()
    assert list(op._backends.kernels) == list(PLATFORMS)


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_the_names_of_gpu_vendors_are_hinted_at(op, platform):
    with pytest.raises(UnknownPlatformError, match=r"\(CUDA and ROCm devices are both 'gpu'\)"):
        op.def_kernel("a", platform, generator)


@pytest.mark.parametrize("bad", [None, 3, "text", [], jax.ShapeDtypeStruct((3,), jnp.float32)], ids=repr)
def test_generators_and_rules_are_callable(op, bad):
    definitions = {
        "the generator of backend 'a'": lambda: op.def_kernel("a", "cpu", bad),
        "def_jvp_rule": lambda: op.def_jvp_rule(bad),
        "def_transpose_rule": lambda: op.def_transpose_rule(bad),
        "def_batching_rule": lambda: op.def_batching_rule(bad),
        "def_call": lambda: op.def_call(bad),
        "def_benchmark_data": lambda: op.def_benchmark_data(bad),
    }
    if bad is not None:  # which stands for an input without a derivative
        definitions["def_jvp_rule2"] = lambda: op.def_jvp_rule2(generator, bad)
    for what, define in definitions.items():
        with pytest.raises(KernelTypeError, match=f"{op.name}: {what} takes a function; got "):
            define()
    assert op._backends.kernels == {}


@pytest.mark.parametrize("backend", [None, "", 3, ("a",)], ids=repr)
def test_a_backends_name_is_a_string(op, backend):
    with pytest.raises(KernelTypeError, match=f"{op.name}: the backend is .*expected a non-empty string"):
        op.def_kernel(backend, "cpu", generator)


@pytest.mark.parametrize("name", [None, "", 3, b"a"], ids=repr)
def test_an_operators_name_is_a_string(name):
    with pytest.raises(KernelTypeError, match="expected a non-empty string"):
        XLACustomKernel(name)
    assert name not in operators()


@pytest.mark.parametrize("name", ["a/b", "a\\b", "csr*?", "a\nb", "a\ud800", "-a", " a", "a "], ids=repr)
def test_a_name_with_special_characters_is_refused(name):
    with pytest.raises(ArgumentError, match=r"the name is .*; allowed are printable characters"):
        XLACustomKernel(name)
    assert name not in operators()


@pytest.mark.parametrize(
    "name", ["my add!", "tests.add", "a-b", "test_add[float32-1.5]", "ä (ö)", "<lambda>", "{x}", "100 %"]
)
def test_a_name_is_any_text_else(name):
    op = XLACustomKernel(name, replace=True)
    op.def_jax_kernel(lambda outs: lambda x: 2 * x)
    op.def_reference(lambda x: 2 * x)
    run = jax.jit(jax.grad(lambda x: op(x, outs=x).sum()))
    assert run(X).tolist() == [2, 2, 2]
    assert operators()[name] is op


def test_a_name_is_taken_once(op):
    op.def_jax_kernel(generator)
    with pytest.raises(DuplicateNameError, match=f"an operator named {op.name!r} exists.*replace=True"):
        XLACustomKernel(op.name)
    assert operators()[op.name] is op
    assert op(X, outs=X).tolist() == X.tolist()


def test_replace_takes_the_name_and_starts_afresh(op):
    op.def_kernel("a", "cpu", times(2))
    op.def_kernel("b", "cpu", times(3), asdefault=True)
    new = XLACustomKernel(op.name, replace=True)
    assert operators()[op.name] is new
    assert new.defaults == {}
    new.def_kernel("c", "cpu", times(5))
    assert new(X, outs=X).tolist() == [0, 5, 10]


def test_a_replaced_operator_is_the_new_one_and_keeps_nothing(op):
    op.def_kernel("a", "cpu", times(2))
    op.def_kernel("b", "cpu", times(3), asdefault=True)
    op.def_reference(lambda x: x)
    op.def_jvp_rule(lambda primals, tangents, **params: None)
    op.def_tags("of this test")
    op.def_call(lambda x: op(x, outs=x))
    op.__doc__ = "The old one."
    jax.interpreters.ad.primitive_transposes[op.primitive] = None
    assert op(X, outs=X).tolist() == [0, 3, 6]
    new = XLACustomKernel(op.name, replace=True)
    assert new is op and op.defaults == {} and op.tags == frozenset() and op.__doc__ == XLACustomKernel.__doc__
    with pytest.raises(BackendNotFoundError, match="no kernel"):
        op(X, outs=X)
    new.def_kernel("c", "cpu", times(5))
    assert op(X, outs=X).tolist() == [0, 5, 10]
    assert new.get_default("cpu") == "c"
    with pytest.raises(XLAKernelError, match="no function to call"):
        op.call(X)
    with pytest.raises(DifferentiationError, match="no derivative"):
        jax.jvp(lambda x: op(x, outs=x), (X.astype(float),), (X.astype(float),))
    with pytest.raises(DifferentiationError, match="transposes"):
        jax.linear_transpose(lambda x: op(x, outs=x), X.astype(float))(X.astype(float))


def test_replace_of_a_free_name_is_a_new_operator(new_name):
    new = XLACustomKernel(new_name(), replace=True)
    assert operators()[new.name] is new


def test_doc_is_the_operators(new_name):
    assert XLACustomKernel(new_name(), doc="Add spikes.").__doc__ == "Add spikes."
    assert XLACustomKernel(new_name(), "Add spikes.").__doc__ == "Add spikes."
    assert XLACustomKernel(new_name()).__doc__ == XLACustomKernel.__doc__


def test_tags_find_operators(new_operator, new_name):
    one, other, tag, second = new_operator(), new_operator(), new_name(), new_name()
    one.def_tags(tag)
    other.def_tags(tag, second)
    assert other.tags == {tag, second}
    assert dict(operators(tag)) == {one.name: one, other.name: other}
    assert dict(operators(second, tag)) == {other.name: other}
    third = new_operator()
    third.def_tags(third.name)
    assert dict(operators(tag, third.name)) == {}  # both are there, and no operator has both
    assert operators().items() >= {one.name: one, other.name: other}.items()
    other.def_tags()
    assert dict(operators(tag)) == {one.name: one}


def test_a_tag_that_no_operator_has(new_operator, new_name):
    op, tag = new_operator(), "a_long_tag"
    op.def_tags(tag)
    with pytest.raises(ArgumentError, match=r"no operator of this process has the tag 'a_lnog_tag'\. Did you mean 'a_"):
        operators("a_lnog_tag")
    with pytest.raises(ArgumentError, match=r"the tag '§'\. There are the tags \[.*'a_long_tag'.*when it is imported"):
        operators(tag, "§")
    with pytest.raises(ArgumentError, match=rf"It is the name of an operator: operators\(\)\['{op.name}'\]"):
        operators(op.name)
    with pytest.raises(ArgumentError, match=r"a tag is \['csr'\]; expected words"):
        operators(["csr"])


def test_operators_cannot_be_changed_through_the_view(op):
    with pytest.raises(TypeError):
        operators()[op.name] = None


def test_call_runs_the_function_of_def_call(new_operator):
    op = new_operator(jnp.add)

    @op.def_call
    def add(x, y=1.0):
        return op(x, jnp.full_like(x, y), outs=x)

    assert add(X).tolist() == op.call(X).tolist() == [1, 2, 3]
    assert op.call(X, y=2.0).tolist() == [2, 3, 4]


def test_benchmark_data_is_kept(op):
    assert op.benchmark_data is None

    @op.def_benchmark_data
    def data(*, platform):
        return [platform]

    assert op.benchmark_data is data
    assert op.benchmark_data(platform="cpu") == ["cpu"]


@pytest.mark.parametrize("made", [copy.copy, copy.deepcopy])
def test_a_copy_is_the_operator_itself(op, made):
    assert made(op) is op
