"""Warp's objects in core's fingerprint of a kernel: stable across processes, and sensitive to changes."""

import importlib
import sys
import textwrap
import time

import pytest
import warp as wp

from xlakernel.core.identity.fingerprint import examine, fingerprint

pytestmark = pytest.mark.versions

SOURCE = """
    from typing import Any

    import warp as wp

    VECTOR = wp.constant(wp.vec3(1.0, 2.0, 3.0))
    MATRIX = wp.mat22(1.0, 2.0, 3.0, 4.0)
    HALF, FLAG, WIDE = wp.float16(0.5), wp.bool(True), wp.int64(1)
    OWN = wp.types.vector(7, wp.float32)
    ZEROS = wp.types.vector(5, wp.float32)()
    TYPE = wp.array(dtype=OWN, ndim=1)
    BRIEF = wp.array2d(dtype=wp.float32)
    sine = wp.sin
    TABLE = (1.0, 2.0)

    @wp.struct
    class Inner:
        value: float

    @wp.struct
    class Pair:
        first: Inner
        second: wp.array(dtype=float)

    @wp.func
    def helper(x: wp.float32):
        return x * 2.0

    @wp.func
    def helper(x: wp.float64):
        return x * wp.float64(3.0)

    @wp.func
    def anything(x: Any):
        return x

    @wp.func
    def anything(x: Any, y: Any):
        return x * y

    @wp.func_native(snippet="return x + 1.0f;", adj_snippet="adj_x += adj_ret;")
    def native(x: float) -> float: ...

    @wp.func
    def with_gradient(x: float):
        return x * 4.0

    @wp.func_grad(with_gradient)
    def its_gradient(x: float, adjoint: float):
        wp.adjoint[x] += adjoint * 5.0

    @wp.func
    def again(x: float) -> float:
        if x < 1.0:
            return x
        return again(x - 6.0)

    def of_python():
        return 7

    @wp.kernel
    def kernel(x: wp.array(dtype=float), s: float, out: wp.array(dtype=float)):
        VECTOR, MATRIX, HALF, FLAG, WIDE, OWN, ZEROS, TYPE, BRIEF, sine, Pair
        helper(x[0]), anything(s), anything(s, s), native(s), with_gradient(s), again(s)
        wp.static(of_python())
        for i in range(2):
            wp.static(TABLE[i])
    """

CHANGES = {
    "a vector": ("2.0, 3.0)", "2.0, 3.5)"),
    "its type": ("wp.vec3(", "wp.vec3d("),
    "a matrix": ("wp.mat22(1.0", "wp.mat22(1.5"),
    "a half": ("float16(0.5)", "float16(1.5)"),
    "a number's type": ("float16(0.5)", "bfloat16(0.5)"),
    "a truth value": ("bool(True)", "bool(False)"),
    "a wide number": ("int64(1)", "int64(1 + 2**40)"),
    "a length": ("vector(7", "vector(8"),
    "a type of the same bytes": ("vector(5, wp.float32)", "vector(5, wp.int32)"),
    "an annotation": ("dtype=OWN, ndim=1", "dtype=OWN, ndim=2"),
    "a brief annotation": ("array2d(", "array3d("),
    "a function of Warp's": ("wp.sin", "wp.cos"),
    "a field of a struct": ("second: wp.array(dtype=float)", "second: wp.array(dtype=int)"),
    "a struct inside": ("value: float", "value: int"),
    "a function": ("x * 2.0", "x * 2.5"),
    "an overload": ("wp.float64(3.0)", "wp.float64(3.5)"),
    "a parameter of a function": ("def again(x: float)", "def again(x: wp.float64)"),
    "a generic function": ("(x: Any):\n        return x", "(x: Any):\n        return x + x"),
    "an overload of it": ("return x * y", "return x - y"),
    "native code": ("x + 1.0f", "x + 2.0f"),
    "its adjoint": ("adj_x += adj_ret", "adj_x -= adj_ret"),
    "a gradient": ("* 5.0", "* 5.5"),
    "a function that calls itself": ("x - 6.0", "x - 6.5"),
    "what a static expression asks": ("return 7", "return 8"),
    "a table": ("TABLE = (1.0, 2.0)", "TABLE = (1.0, 2.5)"),
    "a parameter's type": ("s: float, out", "s: int, out"),
    "an option": ("@wp.kernel", "@wp.kernel(enable_backward=False)"),
    "an option of the module": ("VECTOR =", "wp.set_module_options({'fast_math': True})\n    VECTOR ="),
}


@pytest.fixture
def kernel(tmp_path, monkeypatch, request):
    """Return a function that makes the kernel of a module anew."""
    name = "mine_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(source=SOURCE):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(name).kernel

    yield load
    sys.modules.pop(name, None)


def content(kernel):
    return fingerprint(kernel)


def test_everything_is_known_and_the_same_each_time(kernel):
    assert not examine(kernel()).unknown
    assert content(kernel()) == content(kernel())


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_noticed(kernel, change):
    before, after = CHANGES[change]
    assert before in SOURCE
    assert content(kernel()) != content(kernel(SOURCE.replace(before, after)))


def test_what_a_static_expression_gave_is_part_of_it(kernel, monkeypatch):
    source = """
        import os
        import warp as wp

        @wp.kernel
        def kernel(out: wp.array(dtype=float)):
            out[0] = float(wp.static(int(os.environ["NUMBER"])))
        """
    found = []
    for number in "343":
        monkeypatch.setenv("NUMBER", number)
        found.append(content(kernel(source)))
    assert found[0] == found[2] != found[1]


def test_what_warp_compiles_it_for_changes_nothing(kernel):
    made = kernel()
    before = content(made)
    made.module.options["block_dim"] = 64  # as Warp 1.14 does when it loads the module
    assert content(made) == before


USE = """
    import warp as wp
    from typing import Any

    @wp.func
    def anything(x: Any):
        return x + x

    @wp.kernel
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = anything(x[i]) + float(anything(i)) + {new}.0
    """


def test_what_a_generic_function_was_compiled_for_changes_nothing(kernel):
    made = kernel(USE.format(new=time.time_ns() % 2**24))  # Warp generates no code for what its cache has
    before = content(made)
    x = wp.zeros(3, device="cpu")
    wp.launch(made, dim=3, inputs=[x], outputs=[wp.empty_like(x)], device="cpu")
    assert content(made) == before


def test_an_array_is_itself_only():
    array = wp.zeros(3, device="cpu")
    assert examine(lambda: array).unknown == [array]
