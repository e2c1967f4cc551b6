"""Fingerprints of kernels that refer to values: different for each value, and equal in every process."""

import pytest

pytestmark = pytest.mark.versions

USE = "def kernel(x, out):\n    out[0] = VALUE\n"


def as_global(*values, before="", use=USE):
    """Return one module for each value; the texts are Python."""
    return [f"{before}VALUE = {value}\n{use}" for value in values]


def as_constant(*values):
    return [f"def kernel(x, out):\n    out[0] = {value}\n" for value in values]


def as_default(*values, parameters="x, out"):
    return [f"def kernel({parameters}, a={value}):\n    out[0] = a\n" for value in values]


def as_closure(*values):
    make = "def make(value):\n    def kernel(x, out):\n        out[0] = value\n    return kernel\n"
    return [f"{make}kernel = make({value})\n" for value in values]


def namedtuple(fields, use):
    return f"Pair = namedtuple('Pair', '{fields}')\nPAIR = Pair(1, 2)\ndef kernel(x, out):\n    out[0] = {use}\n"


def enumeration(a, b, use="KIND.A", base="IntEnum"):
    members = f"class KIND(enum.{base}):\n    A = {a}\n    B = {b}\n    C = 3\n"
    return f"{members}MEMBER = KIND.B\ndef kernel(x, out):\n    out[0] = {use}\n"


def module(value):
    before = "constants = types.ModuleType('constants')\nconstants.OTHER = 1\n"
    return f"{before}constants.TAU = {value}\ndef kernel(x, out):\n    out[0] = constants.TAU\n"


def module_in_module(value, *, cyclic=False):
    before = "package = types.ModuleType('package')\npackage.part = types.ModuleType('package.part')\n"
    before += "package.part.package = package\n" if cyclic else ""
    return f"{before}package.part.TAU = {value}\ndef kernel(x, out):\n    out[0] = package.part.TAU\n"


LITERALS = ["1", "1.0", "True", "1 + 0j", "2", "-1", "'1'", "b'1'", "None", "0.0", "-0.0", "...", "1e999", "-1e999"]
SCALARS = [*LITERALS, "float('nan')", "complex(0.0, -0.0)", "complex(-0.0, 0.0)", "2**100", "2**100 + 1"]
NUMPY_SCALARS = [
    *["np.int8(1)", "np.int16(1)", "np.int32(1)", "np.int64(1)", "np.uint8(1)", "np.bool_(1)"],
    *["np.float16(1)", "np.float32(1)", "np.float64(1)", "np.complex64(1)"],
]
ARRAYS = [
    *["np.zeros(2)", "np.zeros(3)", "np.zeros((2, 1))", "np.zeros((1, 2))", "np.zeros(0)", "np.zeros((0, 2))"],
    *["np.zeros(2, 'f4')", "np.zeros(1, 'f8')", "np.zeros(2, 'i8')", "np.zeros(2, 'u8')", "np.zeros(2, '>f8')"],
    *["np.array([0.0, 1])", "np.array([1.0, 0])", "np.array([0.0, -0.0])", "np.array([np.nan, 0])", "[0.0, 0.0]"],
    *[
        "np.zeros(2, 'f4,f4')",
        "np.zeros(2, [('a', 'f4'), ('b', 'f4')])",
        "np.zeros(2, 'M8[s]')",
        "np.zeros(2, 'M8[D]')",
    ],
    *["np.zeros(10**6)", "np.append(np.zeros(10**6 - 1), 1)", "np.zeros(10**6 - 1)"],
]
SEQUENCES = [
    *[
        "()",
        "(1,)",
        "(1.0,)",
        "(True,)",
        "(1, 2)",
        "(2, 1)",
        "((1,), 2)",
        "((1, 2),)",
        "(1, (2,))",
        "('1', 2)",
        "((), ())",
    ],
    *["('ab', 'c')", "('a', 'bc')", "('abc',)", "(b'abc',)", "[]", "[1, 2]", "[(1, 2)]", "([1], 2)"],
    *["range(2)", "range(0, 2, 2)", "slice(2)", "slice(0, 2)", "slice(None)"],
]
SETS = [
    "set()",
    "{1, 2}",
    "{1.0, 2}",
    "{1, 2, 3}",
    "{(1, 2)}",
    "{(1,), (2,)}",
    "{'ab', 'c'}",
    "{'a', 'bc'}",
    "{True, 2}",
]
DICTS = ["{}", "{1: 2}", "{2: 1}", "{1: 2.0}", "{1.0: 2}", "{1: (2,)}", "{1: 2, 3: 4}", "{'a': 1}", "{'b': 1}"]
LIBRARY = [
    *[
        "np.float32",
        "np.float64",
        "np.dtype('f4')",
        "np.dtype('f8')",
        "float",
        "int",
        "ValueError",
        "KeyError",
        "abs",
        "len",
    ],
    *["numba.float32", "numba.float64", "numba.types.Array(numba.f4, 1, 'C')", "numba.types.Array(numba.f4, 2, 'C')"],
    *["math", "np", "np.random", "math.sin", "math.cos", "np.sin", "np.cos", "np.add", "np.sum", "np.mean"],
    *["numba.prange", "numba.njit", "numba.literal_unroll", "numba.carray", "numba.types", "numba.typed.List"],
]

DIFFERENT = {
    "constant": as_constant(*LITERALS, "(1, 2)", "(1, 2.0)", "(2, 1)", "(0.0, 1)", "(-0.0, 1)"),
    "constant set": as_constant(
        *(f"x[0] in {value}" for value in ("{1, 2}", "{1, 3}", "{1.0, 2}", "{(1, 2)}", "(1, 2)"))
    ),
    "default": as_default(*SCALARS, *ARRAYS[:6]),
    "keyword default": as_default(*SCALARS, *ARRAYS[:6], parameters="x, out, *"),
    "closure": as_closure(*SCALARS, *NUMPY_SCALARS, *ARRAYS, *SEQUENCES),
    "global": as_global(*SCALARS, *NUMPY_SCALARS, *ARRAYS, *SEQUENCES, *SETS, *DICTS),
    "global frozenset": as_global(*(f"frozenset({value})" for value in SETS)),
    "global in a nested function": as_global("1", "2", use="def kernel(x, out):\n    out[0] = (lambda: VALUE)()\n"),
    "neighbouring dicts": as_global("({1: 2}, {}, 3, 4)", "({}, 1, 2, {3: 4})"),
    "object of a library": as_global(*LIBRARY),
    "function of numpy.random": as_global("np.random.normal", "np.random.uniform", "np.random.seed"),
    "namedtuple's values": as_global(
        "P(1, 2)", "P(2, 1)", "P(1, 2.0)", "(1, 2)", before="P = namedtuple('P', 'a b')\n"
    ),
    "namedtuple's fields": [namedtuple(fields, "PAIR.a") for fields in ("a b", "b a")],
    "namedtuple's class": [namedtuple(fields, "Pair(1, 2).a") for fields in ("a b", "b a")],
    "enum class": [enumeration(*values, base="Enum") for values in ((1, 2), (2, 1), (1, 4), (1, 2.0), (1.0, 2))],
    "kind of an enum": [enumeration(1, 2, base=base) for base in ("Enum", "IntEnum", "Flag", "IntFlag")],
    "enum member": [enumeration(1, b, use) for b, use in ((2, "MEMBER"), (4, "MEMBER"), (2, "KIND.A"), (2, "KIND.B"))],
    "module's attribute": [module(value) for value in [*SCALARS, *ARRAYS[:6]]],
    "attribute of a module in a module": [module_in_module(value) for value in ("1", "1.0", "2")],
    "attribute in modules that import each other": [
        module_in_module(value, cyclic=True) for value in ("1", "1.0", "2")
    ],
}

OWN_REPR = "class Own({0}):\n    def __repr__(self):\n        return 'own'\n    __str__ = __repr__\n"


def of_own_repr(base, *values):
    return as_global(*(f"Own({value})" for value in values), before=OWN_REPR.format(base))


DIFFERENT |= {
    "memory layout": as_global(
        *("np.arange(8.0)[::2]", "np.arange(0, 8.0, 2)", "np.arange(4.0).reshape(2, 2)"),
        *("np.asfortranarray(np.arange(4.0).reshape(2, 2))", "np.arange(16.0).reshape(4, 4)[::2, ::2]"),
    ),
    "sign of a NaN": as_global(
        "float('nan')", "-float('nan')", "complex(0, float('nan'))", "complex(0, -float('nan'))"
    ),
    **{
        f"subclass of {base}": of_own_repr(base, *values)
        for base, values in {
            "float": ("2.0", "3.0"),
            "int": ("2", "3"),
            "complex": ("2j", "3j"),
            "str": ("'a'", "'b'"),
            "bytes": ("b'a'", "b'b'"),
            "tuple": ("(1,)", "(2,)"),
            "frozenset": ("{1}", "{2}"),
            "np.float64": ("2.0", "3.0"),
        }.items()
    },
    "own repr in a slice": as_global("slice(Own(2))", "slice(Own(3))", before=OWN_REPR.format("float")),
    "own repr in an enum": as_global(
        *("KIND.A", "KIND.B"),
        before=OWN_REPR.format("float") + "class KIND(enum.Enum):\n    A = Own(1)\n    B = Own(2)\n",
    ),
}


def bound(name, *values, use=None):
    """Return one module for each value, which it binds to *name*, an attribute of a library's module."""
    return [f"import builtins\n{name} = {value}\ndef kernel(x, out):\n    out[0] = {use or name}\n" for value in values]


DIFFERENT |= {
    "type in numpy": bound("np.OWN", "np.float32", "np.int32", "np.float64"),
    "function in math": bound("math.own", "math.sin", "math.cos", "np.sin", "len"),
    "type in numba": bound("numba.OWN", "numba.float64", "numba.int32", "numba.types.Array(numba.f4, 1, 'C')"),
    "dtype in numpy": bound("np.OWN", "np.dtype('f4')", "np.dtype('i4')"),
    "functions in a tuple": bound("np.OWN", "(np.sin, np.cos)", "(np.cos, np.sin)"),
    "module in numpy": bound("np.own", "np.linalg", "np.fft", use="np.own.norm(x)"),
    "function in a module of numpy": bound("np.linalg.own", "np.linalg.norm", "np.linalg.det"),
    "builtin": bound("builtins.own", "math.sin", "math.cos", "np.float32", "np.float64", use="own(x[0])"),
}

EQUAL = {
    "sets in another order": as_global("{8, 0, 16, 'a'}", "{16, 'a', 8, 0}"),
    "strings in a set": as_global("{'a', 'b', 'c', 'd', 'e'}", "{'e', 'd', 'c', 'b', 'a'}"),
    "sets of constants": as_constant("x[0] in {'a', 'b', 'c', 'd'}", "x[0] in {'a', 'b', 'c', 'd'}"),
    "unrelated global's value": [text + "other = 1\n" for text in as_global("1")]
    + as_global("1", before="other = 2\n"),
    "unrelated global's name": [text + "other = 1\n" for text in as_global("1")]
    + as_global("1", before="another = 1\n"),
    "unrelated attribute of a module": [module("1"), "constants = types.ModuleType('constants')\n" + module("1")],
}


@pytest.fixture(scope="module")
def hashes(hash_in_processes):
    return hash_in_processes(DIFFERENT | EQUAL)


@pytest.mark.parametrize("case", DIFFERENT)
def test_another_value_has_another_hash(hashes, case):
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
