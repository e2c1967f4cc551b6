"""Fingerprints of code: of a kernel, of its helpers, and of their options."""

import pytest

pytestmark = pytest.mark.versions

CALL = "def kernel(x, out):\n    out[0] = helper(x[0])\n"
RETURN = "return 0.1 * a + 1"
SIMPLE = "VALUE = 1\ndef kernel(x, out):\n    out[0] = VALUE\n"


def body(*texts):
    return [f"def kernel(x, out):\n    {text}\n" for text in texts]


def helper(*decorators, returns=RETURN, use=CALL):
    """Return one module for each decorator of its helper."""
    return [f"{decorator}\ndef helper(a):\n    {returns}\n{use}" for decorator in decorators]


def options(*texts):
    return [f"@numba.njit({text})" for text in texts]


def chain(operation, decorator="@numba.njit"):
    third = f"{decorator}\ndef third(a):\n    return a {operation}\n"
    second = "@numba.njit\ndef second(a):\n    return third(a)\n"
    return f"{third}{second}@numba.njit\ndef helper(a):\n    return second(a)\n{CALL}"


def two_helpers(names, use):
    helpers = "@numba.njit\ndef f(a):\n    return a\n@numba.njit\ndef g(a):\n    return -a\n"
    return f"{helpers}f, g, h = {names}\ndef kernel(x, out):\n    out[0] = {use}\n"


def an_intrinsic(method):
    codegen = f"def codegen(context, builder, signature, args):\n        return builder.{method}(args[0], args[0])\n"
    return f"@intrinsic\ndef helper(typingctx, a):\n    {codegen}    return a(a), codegen\n{CALL}"


def recursive(step):
    return f"@numba.njit\ndef helper(a):\n    return helper(a - {step}) if a > 0 else a\n{CALL}"


def mutually_recursive(step):
    other = f"@numba.njit\ndef other(a):\n    return helper(a - {step}) if a > 0 else a\n"
    return f"@numba.njit\ndef helper(a):\n    return other(a - 1) if a > 0 else a\n{other}{CALL}"


def in_closure(returns):
    make = f"def make():\n    @numba.njit\n    def helper(a):\n        return {returns}\n"
    return f"{make}    def kernel(x, out):\n        out[0] = helper(x[0])\n    return kernel\nkernel = make()\n"


def generalised(layout, returns):
    define = f"@numba.guvectorize(['(f8[:], f8[:])'], '{layout}')\ndef helper(a, b):\n    b[0] = {returns}\n"
    return f"{define}def kernel(x, out):\n    helper(x, out)\n"


def wrapping(wrapped, operation):
    kernel = f"def kernel(x, out):\n    out[0] = x[0] {operation}\n"
    return f"def helper(a):\n    return a\n@functools.wraps({wrapped})\n{kernel}"


def late(value):
    """The closure's cell is bound after the kernel is made, or never."""
    make = (
        f"def make():\n    def kernel(x, out):\n        out[0] = late\n    if {value} is ...:\n        return kernel\n"
    )
    return f"{make}    late = {value}\n    return kernel\nkernel = make()\n"


OPTIONS = [
    *["", "fastmath=True", "fastmath={'nnan'}", "fastmath={'nnan', 'ninf'}", "parallel=True", "error_model='numpy'"],
    *["boundscheck=True", "inline='always'", "nogil=True", "locals={'a': numba.float32}", "locals={'a': numba.int8}"],
]

DIFFERENT = {
    "operation": body(*(f"out[0] = x[0] {operation} 2" for operation in ("+", "-", "*", "//", "%", "<", "<="))),
    "order of statements": body("out[0] = 1; out[1] = 2", "out[1] = 2; out[0] = 1", "out[0] = 2; out[1] = 1"),
    "attribute": body("out[0] = np.sin(x[0])", "out[0] = np.cos(x[0])"),
    "exception handler": body(
        *(f"try:\n        out[0] = 1\n    {e}:\n        out[0] = 2" for e in ("except Exception", "finally"))
    ),
    "extent of a try": body(
        "try:\n        out[0] = 1\n        out[1] = 2\n    except IndexError:\n        out[2] = 3",
        "try:\n        out[0] = 1\n    except IndexError:\n        out[2] = 3\n    else:\n        out[1] = 2",
    ),
    "function inside": body(*(f"f = lambda a: a + {n}\n    out[0] = f(x[0])" for n in ("1", "1.0", "2"))),
    "parameters": [
        f"def kernel({p}):\n    y[0] = x[0]\n" for p in ("x, y", "y, x", "x, y, z", "x, *y", "x, /, y", "x, *, y")
    ],
    "helper": [*helper("@numba.njit"), *helper("@numba.njit", returns="return 0.1 * a + 2")],
    "helper in a closure": [in_closure(returns) for returns in ("a", "-a")],
    "plain Python helper": [*helper("@register_jitable"), *helper("@register_jitable", returns="return a")],
    "kind of helper": helper("@numba.njit", "@numba.jit(forceobj=True)", "@numba.vectorize", "@register_jitable"),
    "helper's options": helper(*options(*OPTIONS)),
    "helper's signature": helper(
        *options("", "'f4(f4)'", "'f8(f8)'", "'i8(f8)'", "['f4(f4)', 'f8(f8)']", "['f8(f8)', 'f4(f4)']")
    ),
    "kernel's options": helper(*options(*OPTIONS), use="kernel = helper"),
    "third helper": [chain("+ 1"), chain("+ 2"), chain("- 1"), chain("+ 1", "@numba.njit(fastmath=True)")],
    "which helper": [two_helpers("f, g, g", use) for use in ("f(g(0))", "g(f(0))", "f(f(0))", "f(0)")],
    "which helper has the name": [
        two_helpers(names, "f(x[0]) - 2 * g(x[0]) + 5 * h(x[0])")
        for names in ("f, g, f", "f, g, g", "g, f, f", "g, f, g", "f, f, g", "f, f, f")
    ],
    "intrinsic": [an_intrinsic("fadd"), an_intrinsic("fmul")],
    "intrinsic's literals": [
        an_intrinsic("fadd"),
        an_intrinsic("fadd").replace("@intrinsic", "@intrinsic(prefer_literal=True)"),
    ],
    "C callback's options": helper(
        *("@numba.cfunc('f8(f8)')", "@numba.cfunc('f8(f8)', error_model='numpy')"),
        *("@numba.cfunc('f8(f8)', fastmath=True)", "@numba.cfunc('f8(f8)', locals={'a': numba.float32})"),
    ),
    "C callback": [*helper("@numba.cfunc('f8(f8)')"), *helper("@numba.cfunc('f8(f8)')", returns="return a")],
    "C callback's signature": helper("@numba.cfunc('f4(f4)')", "@numba.cfunc('f8(f8)')"),
    "ufunc": [*helper("@numba.vectorize"), *helper("@numba.vectorize", returns="return a")],
    "ufunc's options": helper("@numba.vectorize", "@numba.vectorize(fastmath=True)"),
    "ufunc's signature": helper(
        *("@numba.vectorize", "@numba.vectorize(['f4(f4)'])", "@numba.vectorize(['f8(f8)'])"),
        "@numba.vectorize(['i8(f8)'])",
    ),
    "generalised ufunc": [generalised("(n)->(n)", "a[0]"), generalised("(n)->(n)", "a[1]")],
    "recursion": [recursive(1), recursive(2)],
    "mutual recursion": [mutually_recursive(1), mutually_recursive(2)],
    "late closure": [late("1"), late("2"), late("...")],
    "function that wraps another": [wrapping("helper", "+ 1"), wrapping("helper", "+ 2")],
    "function that wraps a builtin": [wrapping("math.sin", "+ 1"), wrapping("math.sin", "+ 2")],
}

EQUAL = {
    "lines above": [SIMPLE, f"# a comment\n\n{SIMPLE}", f"def unrelated():\n    pass\n\n{SIMPLE}"],
    "lines inside": [
        SIMPLE,
        SIMPLE.replace(":\n", ":\n\n    # a comment\n"),
        SIMPLE.replace("= VALUE", "= (\n        VALUE)"),
    ],
    "lines inside a nested function": body(
        "f = lambda a: a\n    out[0] = f(1)", "f = lambda a: (\n        a)\n    out[0] = f(1)"
    ),
    "unused helper": [
        SIMPLE,
        *helper("@numba.njit", use=SIMPLE),
        *helper("@numba.njit", returns="return 1", use=SIMPLE),
    ],
    "options in another order": helper(
        *options("fastmath=True, nogil=True", "nogil=True, fastmath=True"), use="kernel = helper"
    ),
    "flags in another order": helper(*options("fastmath={'nnan', 'nsz', 'arcp'}", "fastmath={'arcp', 'nsz', 'nnan'}")),
    "used before": [*helper("@numba.njit"), *helper("@numba.njit", use=f"helper(1)\nhelper(1.5)\n{CALL}")],
    "ufunc used before": [
        *helper("@numba.vectorize"),
        *helper("@numba.vectorize", use=f"helper(1)\nhelper(1.5)\n{CALL}"),
    ],
}


@pytest.fixture(scope="module")
def hashes(hash_in_processes):
    return hash_in_processes(DIFFERENT | EQUAL)


@pytest.mark.parametrize("case", DIFFERENT)
def test_other_code_has_another_hash(hashes, case):
    shared = {}
    for text, found in zip(DIFFERENT[case], hashes[0][case], strict=True):
        shared.setdefault(found, []).append(text)
    assert [texts for texts in shared.values() if len(texts) > 1] == []


@pytest.mark.parametrize("case", EQUAL)
def test_equal_code_has_the_same_hash(hashes, case):
    assert len(set(hashes[0][case])) == 1


@pytest.mark.parametrize("case", DIFFERENT | EQUAL)
def test_the_hash_is_the_same_in_every_process(hashes, case):
    texts = (DIFFERENT | EQUAL)[case]
    assert [
        text for text, one, other in zip(texts, hashes[0][case], hashes[1][case], strict=True) if one != other
    ] == []


@pytest.mark.parametrize("case", DIFFERENT | EQUAL)
def test_a_hash_is_32_hexadecimal_digits(hashes, case):
    assert [found for found in hashes[0][case] if len(found) != 32 or set(found) - set("0123456789abcdef")] == []
