"""Kernels with `overload` functions, which Numba runs as Python while it infers types."""

import functools
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from helper_kinds import needs_objmode_without_pickles
from numba.extending import intrinsic, overload

from xlakernel.core.backend import examine
from xlakernel.core.errors import CompileError
from xlakernel.core.native.copies import functions as own_copies
from xlakernel.numba import numba_kernel

SCALAR = jax.ShapeDtypeStruct((), np.float32)


def kernel_of(definition):
    """Return a kernel that calls a function with this overload, and the same function in plain Numba."""

    def declared(x): ...

    overload(declared)(definition)

    @numba.njit
    def kernel(x, out):
        out[()] = declared(x[()])

    return kernel, numba.njit(lambda x: declared(x))


def run(kernel):
    return float(numba_kernel(kernel, SCALAR)(np.float32(1)))


@pytest.fixture
def module(request):
    """Make a module that can be imported, with these attributes."""

    def make(name, **attributes):
        made = types.ModuleType(name)
        vars(made).update(attributes, __path__=[])
        sys.modules[name] = made
        request.addfinalizer(lambda: sys.modules.pop(name))
        return made

    return make


def test_names_in_a_set_display_are_followed():
    constants = types.ModuleType("constants")
    constants.A, constants.B = 1.0, 1.0

    def definition(x):
        total = 0.0
        for name in {"A", "B"}:
            total += getattr(constants, name)
        return lambda x: total * x

    kernel, _ = kernel_of(definition)
    assert run(kernel) == 2
    constants.A = 2.0
    assert run(kernel) == 3


def test_an_attribute_that_moves_to_another_module():
    one, two = types.ModuleType("one"), types.ModuleType("two")

    def definition(x):
        total = 2 * getattr(one, "W", 0.0) + 3 * getattr(two, "W", 0.0)
        return lambda x: total * x

    kernel, _ = kernel_of(definition)
    one.W = 1.0
    assert run(kernel) == 2
    del one.W
    two.W = 1.0
    assert run(kernel) == 3


def test_a_parent_that_a_dotted_import_binds(module):
    parent = module("imported_parent", GAIN=2.0)
    parent.child = module("imported_parent.child")

    def definition(x):
        import imported_parent.child

        gain = imported_parent.GAIN
        return lambda x: gain * x

    kernel, _ = kernel_of(definition)
    assert run(kernel) == 2
    parent.GAIN = 3.0
    assert run(kernel) == 3


def test_a_submodule_that_only_the_overload_imports(tmp_path, monkeypatch):
    (tmp_path / "lazy_parent").mkdir()
    (tmp_path / "lazy_parent" / "__init__.py").touch()
    (tmp_path / "lazy_parent" / "constants.py").write_text("X = 2.0\n")
    monkeypatch.syspath_prepend(tmp_path)

    def definition(x):
        from lazy_parent import constants

        gain = constants.X
        return lambda x: gain * x

    kernel, _ = kernel_of(definition)
    before = run(kernel)
    sys.modules["lazy_parent.constants"].X = 3.0
    assert (before, run(kernel)) == (2, 3)


@pytest.mark.parametrize("kind", ["function", "helper", "module"])
def test_attributes_of_what_is_copied(kind):
    module = types.ModuleType("computed")
    module.__getattr__ = {"weight": 10.0}.__getitem__
    tagged = {"function": lambda x: x, "helper": numba.njit(lambda x: x), "module": module}[kind]
    if kind != "module":
        tagged.weight = 10.0

    def definition(x):
        weight = getattr(tagged, "weight", 1.0)
        return lambda x: weight * x

    kernel, plain = kernel_of(definition)
    assert run(kernel) == plain(np.float32(1)) == 10


@needs_objmode_without_pickles
def test_objmode_sets_attributes_of_the_users_module():
    state = types.ModuleType("state")
    state.calls = 0

    @numba.njit
    def kernel(x, out):
        with numba.objmode():
            state.calls = state.calls + 1
        out[()] = x[()]

    count = numba_kernel(kernel, SCALAR, has_side_effect=True)
    for _ in range(3):
        count(np.float32(1)).block_until_ready()
    assert state.calls == 3


def test_helpers_in_containers_are_hidden():
    helper = numba.njit(lambda x: x)
    table, pair = {"helper": helper}, (helper, 1)

    def from_table(x):
        found = table["helper"]
        return lambda x: found(x)

    def from_tuple(x):
        found = pair[0]
        return lambda x: found(x)

    assert examine(from_table).hidden == [helper]
    assert examine(from_tuple).hidden == []


def test_a_kernel_with_a_hidden_helper_is_not_stored(tmp_path, monkeypatch):
    from xlakernel.numba import _compile

    stored = []
    monkeypatch.setattr(_compile, "write_kernel", lambda fingerprint, compiled, owned: stored.append(compiled))
    helper = numba.njit(lambda x: x + 41)
    table = [helper]

    def definition(x):
        found = table[0]
        return lambda x: found(x)

    def declared(x): ...

    overload(declared)(definition)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    @numba.njit(cache=True)
    def hidden(x, out):
        out[()] = declared(x[()])

    @numba.njit(cache=True)
    def visible(x, out):
        out[()] = helper(x[()])

    assert run(hidden) == run(visible) == 42
    assert [compiled.fndesc.qualname.rpartition(".")[2] for compiled in stored] == ["visible"]


# Helpers that a definition calls in Python, and that handlers call without an entry for Python


@pytest.mark.parametrize("declared", [(), ("float64(float64)",)], ids=["any types", "declared types"])
def test_a_definition_calls_a_helper_of_the_kernel(declared):
    factor = [2.0]

    @numba.njit(*declared)
    def helper(x):
        return 3.0 * x

    def called(x): ...

    @overload(called)
    def definition(x):
        constant = helper(factor[0]) + helper(factor[0])  # the second call finds what the first one compiled
        return lambda x: constant + x

    @numba.njit
    def kernel(x, out):
        out[()] = helper(np.float64(x[()])) + called(x[()])

    assert run(kernel) == 3 + 12 + 1
    factor[0] = 4.0
    assert run(kernel) == 3 + 24 + 1


def test_a_definition_compares_and_calls_its_argument():
    @numba.njit
    def helper(x):
        return 3.0 * x

    def called(function, x): ...

    @overload(called)
    def definition(function, x):
        constant = function.dispatcher(2.0) if function.dispatcher is helper else -1.0
        return lambda function, x: function(x) + constant

    @numba.njit
    def kernel(x, out):
        out[()] = called(helper, x[()])

    assert run(kernel) == 3 + 6
    assert numba.njit(lambda x: called(helper, x))(1.0) == 3 + 6


def test_an_error_in_a_definition_leaves_the_helpers_of_other_kernels():
    @numba.njit
    def helper(x):
        return 2 * x

    @numba.njit
    def kernel(x, out):
        out[()] = helper(x[()])

    def definition(x):
        raise KeyError("no such type")

    assert run(kernel) == 2
    copies = dict(own_copies._helpers)
    with pytest.raises(CompileError, match="no such type"):
        run(kernel_of(definition)[0])
    assert own_copies._helpers.items() >= copies.items()


@pytest.mark.parametrize("mutual", [False, True])
def test_a_recursive_helper_that_a_definition_calls(mutual):
    @numba.njit
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    @numba.njit
    def is_even(n):
        return True if n == 0 else is_odd(n - 1)

    @numba.njit
    def is_odd(n):
        return False if n == 0 else is_even(n - 1)

    def shifted(value):
        raise NotImplementedError

    @overload(shifted)
    def shifted_in_numba(value):
        number = is_even(4) if mutual else factorial(4)
        return lambda value: value + number

    @numba.njit
    def kernel(x, out):
        for i in range(x.size):
            out[i] = shifted(x[i])

    found = numba_kernel(kernel, outs=lambda x: x)(jnp.arange(3.0))
    assert found.tolist() == ([1, 2, 3] if mutual else [24, 25, 26])


# Options, targets and signatures of helpers


def overloaded(**options):
    def helper(a):
        pass

    @overload(helper, **options)
    def choose(a):
        return (lambda a: 1) if isinstance(a, numba.types.IntegerLiteral) else (lambda a: 2)

    return helper


def intrinsically(**options):
    def helper(typingctx, a):
        number = 1 if isinstance(a, numba.types.IntegerLiteral) else 2
        return numba.intp(a), lambda context, *_: context.get_constant(numba.intp, number)

    return intrinsic(**options)(helper)


def for_targets(**options):
    def helper(a):
        pass

    first, second = options["targets"]
    overload(helper, target=first)(lambda a: lambda a: 1.0)
    overload(helper, target=second)(lambda a: lambda a: 2.0)
    return helper


def callback(**options):
    @numba.cfunc("f8(i8)", **options)
    def helper(a):
        b = a + 0.75
        return b / (a - a)

    return helper


def half(a):
    return a / 2


def with_signature(decorate, signature):
    return decorate(signature)(half)


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (overloaded, {}, {"prefer_literal": True}),
        (intrinsically, {"prefer_literal": False}, {"prefer_literal": True}),
        (for_targets, {"targets": ["cpu", "generic"]}, {"targets": ["generic", "cpu"]}),
        *(
            (
                with_signature,
                {"decorate": decorate, "signature": ["f8(f8)"]},
                {"decorate": decorate, "signature": ["i8(f8)"]},
            )
            for decorate in (numba.njit, numba.vectorize)
        ),
        (callback, {"error_model": "numpy"}, {"error_model": "numpy", "locals": {"b": numba.int64}}),
    ],
    ids=["overload", "intrinsic", "target", "njit", "vectorize", "callback"],
)
def test_helpers_with_other_declarations_are_other_helpers(make, one, other):
    def wrap(options):
        helper = make(**options)

        @numba.njit
        def kernel(x, out):
            for i in range(x.size):
                out[i] = x[i] * helper(5)

        return kernel, numba_kernel(kernel, outs=lambda x: x)

    names = set()
    for options in (one, other):
        kernel, wrapped = wrap(options)
        expected = np.empty(3, np.float32)
        kernel(np.ones(3, np.float32), expected)
        np.testing.assert_array_equal(wrapped(jnp.ones(3)), expected)
        names.add(jax.jit(wrapped).lower(jnp.ones(3)).as_text())
    assert len(names) == 2


def test_a_pickle_is_that_of_the_present_implementation():
    kernels = [kernel_of(definition)[0] for definition in (lambda x: lambda x: x + 1, lambda x: lambda x: x + 2)]
    digests = {numba_kernel(kernel, SCALAR).__reduce__()[1][2] for kernel in kernels}
    assert len(digests) == 2 and None not in digests


def test_helpers_that_are_also_found_in_another_way_are_hidden():
    helper = numba.njit(lambda x: x)

    def make():
        found = helper
        return lambda x: found(x)

    table = [make]

    def definition(x):
        return make() if x else table[0]()

    @functools.cache
    def remembered():
        return numba.njit(lambda x: x)

    def from_cache(x):
        found = remembered()
        return lambda x: found(x)

    assert examine(definition).hidden == [helper]
    assert examine(from_cache).hidden == [remembered]


@pytest.mark.process
def test_special_methods_of_builtins_are_in_the_fingerprint():
    """In a process of its own: a declaration stays."""
    source = """
import numba
from numba.core import types
from numba.extending import overload_method
from xlakernel.numba._recipe import COMPILER

@numba.njit
def kernel(x, out):
    out[()] = hash(x)

before = COMPILER.fingerprint(kernel)
overload_method(types.Record, "__hash__")(lambda record: lambda record: 1)
assert COMPILER.fingerprint(kernel) != before
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=300)
