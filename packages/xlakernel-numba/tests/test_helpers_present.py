"""The present values of all references of a kernel's helpers in its code, also after earlier compilations."""

import functools
import gc
import os
import pathlib
import subprocess
import sys
import textwrap
import types
import weakref
import zlib
from fractions import Fraction

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
import scipy.special
from helper_kinds import HELPERS, KERNEL, ONE, define, module_of, run, slow_but_first
from numba.extending import overload, overload_attribute, overload_method

from xlakernel.core.ffi.registry import registered_targets
from xlakernel.numba import numba_kernel

pytestmark = pytest.mark.versions


def test_a_global_that_changed_without_jit():
    cell = define(HELPERS["njit"] + "\n" + KERNEL, G=1)
    with jax.disable_jit():
        assert run(cell["kernel"]) == 1
        cell["G"] = 2
        assert run(cell["kernel"]) == 2


@pytest.mark.parametrize("name", HELPERS)
def test_a_global_that_changed(name):
    cell = define(HELPERS[name] + "\n" + KERNEL, G=1)
    kernel = cell["kernel"]
    assert run(kernel) == 1
    cell["G"] = 2
    assert run(kernel) == 2
    exec(KERNEL, cell)  # noqa: S102
    assert run(cell["kernel"]) == 2
    cell["G"] = 1
    before = len(registered_targets())
    assert run(kernel) == 1
    assert len(registered_targets()) == before


@pytest.mark.parametrize("name", HELPERS)
def test_a_helper_that_was_compiled_before(name):
    cell = define(HELPERS[name] + "\n" + KERNEL, G=1)
    cell["kernel"](np.zeros(1, np.float32), np.zeros(1, np.float32))
    out = np.zeros(1, np.float32)
    cell["G"] = 2
    assert run(cell["kernel"]) == 2
    cell["kernel"](np.zeros(1, np.float32), out)
    assert out[0] == 1  # Numba's own call is as it was


@pytest.mark.parametrize("name", slow_but_first(name for name in HELPERS if name not in ("recursive", "mutual")))
def test_closure_cells(name):
    """A list of one number, and cells that are rebound."""
    lines = [*HELPERS[name].splitlines(), *KERNEL.splitlines()]
    source = "\n".join(["def make(G):", *("    " + line for line in lines)])
    cells = define(
        f"{source}\n    def change(value):\n        nonlocal G\n        G = value\n    return kernel, change\n"
    )
    kernel, change = cells["make"](1)
    assert run(kernel) == 1
    change(2)
    assert run(kernel) == 2


@pytest.mark.parametrize("kind", ["njit", "vectorize", "register_jitable", "overload"])
def test_an_array_in_a_closure_that_is_changed_in_place(kind):
    table = np.array([1.0])
    cell = define(HELPERS[kind].replace("G", "G[0]") + "\n" + KERNEL, G=table)
    assert run(cell["kernel"]) == 1
    table[0] = 2
    assert run(cell["kernel"]) == 2


@pytest.mark.parametrize("kind", ["njit", "vectorize", "register_jitable"])
def test_an_attribute_of_a_module(kind):
    constants = types.ModuleType("constants")
    constants.VALUE = 1
    cell = define(HELPERS[kind].replace("G", "G.VALUE") + "\n" + KERNEL, G=constants)
    assert run(cell["kernel"]) == 1
    constants.VALUE = 2
    assert run(cell["kernel"]) == 2


@pytest.mark.parametrize(("declare", "use"), [(overload_method, "v.{}()"), (overload_attribute, "v.{}")])
def test_a_method_and_an_attribute(declare, use):
    name = f"plus_g_{declare.__name__}"
    cell = define("@numba.njit\ndef inner(x): return x[0] + G\ndef declared(x): return lambda x: inner(x)\n", G=1)
    declare(numba.types.Array, name)(cell["declared"])
    exec(f"@numba.njit\ndef kernel(v, out): out[0] = {use.format(name)}\n", cell)  # noqa: S102
    assert run(cell["kernel"]) == 1
    cell["G"] = 2
    assert run(cell["kernel"]) == 2


def test_a_declaration_for_the_function_of_a_library():
    cell = define("def declared(x): return lambda x: x + G\n", G=1)
    overload(np.i0)(cell["declared"])
    exec("@numba.njit\ndef kernel(v, out): out[0] = np.i0(v[0])\n", cell)  # noqa: S102
    assert run(cell["kernel"]) == 1
    cell["G"] = 2
    assert run(cell["kernel"]) == 2


class Callable:
    def __call__(self, v): ...


# Numba keeps the function as an attribute of a class (`make_overload_template`), of which Python 3.13 warns.
PARTIAL = pytest.param(
    "functools.partial(abs, 1)",
    marks=pytest.mark.filterwarnings("ignore:functools.partial will be a method descriptor:FutureWarning"),
)


@pytest.mark.parametrize(
    "what",
    [
        *("Fraction", "type('Own', (), {})", "scipy.special.erfcx", "np.frompyfunc(abs, 1, 1)", "zlib.crc32"),
        *("Callable()", "Callable().__call__", PARTIAL, "functools.cache(Callable())"),
    ],
)
def test_a_declaration_for_an_object_that_is_no_python_function(what):
    names = {"functools": functools, "Fraction": Fraction, "scipy": scipy, "zlib": zlib, "Callable": Callable}
    cell = define(f"helper = {what}\n@overload(helper)\ndef declare(v): return lambda v: v + G\n{KERNEL}", G=1, **names)
    for value in (1, 2, 1):
        cell["G"] = value
        assert run(cell["kernel"]) == value


def test_a_helper_of_a_subclass_of_numbas_wrapper():
    class Own(type(numba.njit(run))):
        pass

    cell = define(
        f"def function(v): return v + G\nhelper = Own(function, targetoptions={{'nopython': True}})\n{KERNEL}",
        G=1,
        Own=Own,
    )
    for value in (1, 2):
        cell["G"] = value
        assert run(cell["kernel"]) == value


# References without a name in the bytecode: an operator or builtin that is declared for tuples of three strings, which
# Numba does not support, and its use in a kernel.
UNNAMED = {
    "matmul": ("operator.matmul", "a, b", "('k', 'l', 'm') @ 1"),
    "neg": ("operator.neg", "a", "-('k', 'l', 'm')"),
    "lshift": ("operator.lshift", "a, b", "('k', 'l', 'm') << 1"),
    "abs": ("abs", "a", "abs(('k', 'l', 'm'))"),
    "in a function of the kernel": ("operator.rshift", "a, b", "shift(('k', 'l', 'm'))"),
}


def check_unnamed(name):
    declared, parameters, use = UNNAMED[name]
    cell = define(
        "import operator\n"
        f"@overload({declared})\n"
        f"def declare({parameters}):\n"
        "    if a == numba.types.UniTuple(numba.types.unicode_type, 3) or isinstance(a, numba.types.Tuple):\n"
        f"        return lambda {parameters}: G\n"
        "@numba.njit\n"
        "def shift(a): return a >> 1\n"
        f"@numba.njit\ndef kernel(x, out): out[0] = x[0] + ({use})\n",
        G=1,
    )
    before = numba_kernel(cell["kernel"], outs=ONE)
    assert before(ONE)[0] == 1
    cell["G"] = 2
    assert run(cell["kernel"]) == 2


@pytest.mark.process
def test_a_declaration_for_an_operator():
    """In a new process, because any kernel may use the declarations and could not be exported."""
    command = f"import {__name__.split('.')[-1]} as tests; [tests.check_unnamed(name) for name in tests.UNNAMED]"
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=pathlib.Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


MODULE_USES = {
    "getattr": "@numba.njit\ndef kernel(x, out): out[0] = x[0] + getattr(M, 'VALUE')\n",
    "getattr of a global": "NAME = 'VALUE'\n@numba.njit\ndef kernel(x, out): out[0] = x[0] + getattr(M, NAME)\n",
    "argument": "@numba.njit\ndef helper(m, v): return v + m.VALUE\n"
    "@numba.njit\ndef kernel(x, out): out[0] = helper(M, x[0])\n",
    "argument twice": "@numba.njit\ndef inner(m, v): return v + m.VALUE\n"
    "@numba.njit\ndef helper(m, v): return inner(m, v)\n"
    "@numba.njit\ndef kernel(x, out): out[0] = helper(M, x[0])\n",
    "helper": "@numba.njit\ndef inner(v): return v + M.VALUE\nM.inner = inner\n"
    "@numba.njit\ndef helper(m, v): return m.inner(v)\n"
    "@numba.njit\ndef kernel(x, out): out[0] = helper(M, x[0])\n",
}


@pytest.mark.parametrize("name", MODULE_USES)
def test_a_module_attribute_that_no_name_refers_to(name):
    cell = define(MODULE_USES[name], M=module_of(VALUE=1))
    assert run(cell["kernel"]) == 1
    cell["M"].VALUE = 2
    assert run(cell["kernel"]) == 2
    cell["M"].VALUE = 1
    before = len(registered_targets())
    assert run(cell["kernel"]) == 1
    assert len(registered_targets()) == before


def test_a_module_that_a_declaration_imports(monkeypatch):
    module = module_of(GAIN=1)
    monkeypatch.setitem(sys.modules, "settings_of_a_test", module)
    imports = ["from settings_of_a_test import GAIN", "import settings_of_a_test as s; GAIN = s.GAIN"]
    for number, line in enumerate(imports):
        declare = f"@overload(helper)\ndef declare(v):\n    {line}\n    return lambda v: v + GAIN\n"
        kernel = define("def helper(v): pass\n" + declare + KERNEL)["kernel"]
        module.GAIN = 10 * number + 1
        assert run(kernel) == 10 * number + 1
        module.GAIN = 10 * number + 2
        assert run(kernel) == 10 * number + 2


@pytest.mark.parametrize("line", ["a{} = 'constant {}'", "if v is None: global{}.attribute{}"])
def test_a_module_that_a_declaration_with_many_constants_imports(monkeypatch, line):
    module = types.ModuleType("constants_of_long_declaration")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    lines = "".join(f"    {line.format(i, i)}\n" for i in range(300))  # numbers of more than a byte in the bytecode
    declare = f"def helper(v): pass\n@overload(helper)\ndef declare(v):\n{lines}"
    kernel = define(f"{declare}    from {module.__name__} import G\n    return lambda v: v + G\n{KERNEL}")["kernel"]
    for value in (1, 2):
        module.G = value
        assert run(kernel) == value


def test_attributes_that_a_declaration_sets_and_reads():
    module = module_of(count=0, helper=define(HELPERS["njit"], G=0)["helper"])
    declare = """
def helper(v): pass
@overload(helper)
def declare(v):
    state.count = 7
    state.added = 8
    now = state.count + state.added
    del state.added
    now += hasattr(state, "added")
    return lambda v: v + now
"""
    kernel = define(declare + "@numba.njit\ndef kernel(x, out): out[0] = helper(state.helper(x[0]))", state=module)
    assert run(kernel["kernel"]) == 15
    assert module.count == 7


def test_settings_that_a_declaration_reads(monkeypatch):
    declare = """
def helper(v): pass
@overload(helper)
def declare(v):
    gain = float(os.environ["GAIN_OF_A_TEST"]) + jax.config.jax_debug_nans
    return lambda v: v + gain
"""
    kernel = define(declare + KERNEL, os=os, jax=jax)["kernel"]
    for gain in (1, 2):
        monkeypatch.setenv("GAIN_OF_A_TEST", str(gain))
        assert run(kernel) == gain
        with jax.debug_nans(True):
            assert run(kernel) == gain + 1


def test_options_of_a_declaration_are_part_of_the_kernel():
    def make(**options):
        return define(f"@register_jitable(**{options!r})\ndef helper(v): return v + 1\n" + KERNEL)["kernel"]

    before = len(registered_targets())
    assert run(make(fastmath=False)) == run(make(fastmath=True)) == 1
    assert len(registered_targets()) == before + 2


def test_helpers_are_compiled_once_for_all_kernels():
    compiled = []

    class Compilations(numba.core.event.Listener):
        def on_start(self, event):
            compiled.append(event.data["dispatcher"].__name__)

        def on_end(self, event):
            pass

    cell = define("@numba.njit\ndef counted(v): return 1 + v * 1\nhelper = counted\n" + KERNEL)
    with numba.core.event.install_listener("numba:compile", Compilations()):
        for power in range(3):
            exec(KERNEL.replace("(x[0])", f"(x[0]) * 1 ** {power}"), cell)  # noqa: S102
            assert run(cell["kernel"]) == 1
    assert compiled.count("counted") == 1


PROJECT = {
    "constants.py": "VALUE = 1.0\n",
    "helpers.py": "import numba\nfrom constants import VALUE\n\n@numba.njit(cache=True)\ndef helper(v):\n"
    "    return v + VALUE\n"
    "\n@numba.njit(cache=True)\ndef factory_helper(v):\n    return helper(v)\n",
    "kernels.py": "import numba\nfrom helpers import factory_helper\n\n@numba.njit(OPTIONS)\ndef kernel(x, out):\n"
    "    out[0] = factory_helper(x[0])\n",
    "main.py": "import sys\nimport jax, jax.numpy as jnp, numpy as np, kernels, helpers\n"
    "from xlakernel.numba import numba_kernel\n"
    "if 'first' in sys.argv: helpers.helper(np.float32(0)), helpers.factory_helper(np.float32(0))\n"
    "print(float(numba_kernel(kernels.kernel, outs=jnp.zeros(1))(jnp.zeros(1))[0]))\n",
}


@pytest.mark.process
@pytest.mark.parametrize("options", ["", "cache=True"])
def test_numbas_own_files_do_not_restore_an_older_constant(tmp_path, monkeypatch, options):
    """Numba's key contains the file that defines a function, but not its imports."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text.replace("OPTIONS", options))

    def result(*arguments):
        command = [sys.executable, "-B", "main.py", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    assert result("first") == 1
    (tmp_path / "constants.py").write_text("VALUE = 2.0\n")
    assert result() == 2
    assert result("first") == 2
    for file in tmp_path.rglob("*.nb?"):
        if ".xlakernel" not in file.name:
            file.unlink()
    assert result() == 2
    (tmp_path / "constants.py").write_text("VALUE = 1.0\n")
    assert result() == 1


def test_a_wrapper_is_traced_anew_with_present_values():
    cell = define(HELPERS["njit"] + "\n" + KERNEL.replace("x[0]", "x[0]"), G=1)
    call = numba_kernel(cell["kernel"], outs=lambda x: jax.ShapeDtypeStruct((1,), x.dtype))
    assert call(jnp.zeros(1))[0] == 1
    cell["G"] = 2
    assert call(jnp.zeros(1))[0] == 1  # the program that JAX has
    assert call(jnp.zeros(2))[0] == 2


def test_a_kernel_keeps_only_objects_alive_that_it_names():
    class Large:
        pass

    cell = define("@numba.njit\ndef helper(v): return v + 1\n" + KERNEL, unrelated=Large())
    assert run(cell["kernel"]) == 1
    kept = weakref.ref(cell.pop("unrelated"))
    gc.collect()
    assert kept() is None


# Helpers that get functions, modules and names as arguments: their own fingerprints do not contain these.

APPLY = "@numba.njit\ndef apply(f, v): return f(v)\n"
PASSED = {
    "overload": "def add(v): pass\n@overload(add)\ndef declare(v): return lambda v: v + G",
    "register_jitable": "@register_jitable\ndef add(v): return v + G",
    "njit": "@numba.njit\ndef add(v): return v + G",
    "class": "class add: pass\n@overload(add)\ndef declare(v): return lambda v: v + G",
    "intrinsic": """
        @intrinsic
        def add(typing, v):
            value = G
            def generate(context, builder, signature, arguments):
                return builder.fadd(*arguments, context.get_constant(numba.float32, value))
            return numba.float32(numba.float32), generate
        """,
}


@pytest.mark.parametrize("kind", PASSED)
@pytest.mark.parametrize("call", ["apply(add, v)", "twice(add, v)", "first((add,), v)", "declared(add, v)"])
def test_a_function_as_argument_of_a_helper(kind, call):
    helpers = f"""
@numba.njit
def twice(f, v): return apply(f, v)
@numba.njit
def first(fs, v): return fs[0](v)
def declared(f, v): pass
@overload(declared)
def declare_one(f, v): return lambda f, v: f(v)
@numba.njit
def helper(v): return {call}
"""
    cell = define(f"{APPLY}{textwrap.dedent(PASSED[kind])}\n{helpers}\n{KERNEL}", G=1)
    for value in (1, 2, 1):
        cell["G"] = value
        assert run(cell["kernel"]) == value


def test_a_module_as_argument_of_a_helper():
    module = module_of(G=1)
    source = """
@numba.njit
def add(m, v): return v + m.G
helper = numba.njit(lambda v: add(module, v))
"""
    cell = define(source + KERNEL, module=module)
    for value in (1, 2, 1):
        module.G = value
        assert run(cell["kernel"]) == value


def test_a_name_as_argument_of_a_declared_function():
    source = """
def get(v, name): pass
@overload(get, prefer_literal=True)
def declare(v, name):
    value = getattr(module, name.literal_value)
    return lambda v, name: v + value
@numba.njit
def helper(v): return get(v, "G")
"""
    module = module_of(G=1)
    cell = define(source + KERNEL, module=module)
    for value in (1, 2, 1):
        module.G = value
        assert run(cell["kernel"]) == value


def test_a_helper_as_default_of_a_keyword():
    source = """
@numba.njit
def inner(v): return v + G
def make(*, f=inner): return lambda v: f(v)
def helper(v): pass
@overload(helper)
def declare(v): return make()
"""
    cell = define(source + KERNEL, G=1)
    for value in (1, 2, 1):
        cell["G"] = value
        assert run(cell["kernel"]) == value
