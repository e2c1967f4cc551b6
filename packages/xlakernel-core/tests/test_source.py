"""Definitions as text that no comment, no line number and no version of Python changes."""

import importlib.util

import numpy as np
import pytest

from xlakernel.core.identity.fingerprint import fingerprint
from xlakernel.core.identity.source import SourceError, definition

TEXT = """
import functools
def decorate(function): return function

def f(x, out, *, k=2):
    for i in range(x.size):
        out[i] = x[i] + 0 if k is None else -1.5
"""


@pytest.fixture
def load(tmp_path):
    """Return a function that makes a module of a text; each time in the same file."""

    def load_(text):
        path = tmp_path / "module_of_the_source_test.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        exec(compile(text, path, "exec"), vars(module))  # noqa: S102  # past Python's cache of bytecode
        return module

    return load_


def test_a_definition_is_pinned(load):
    """It is compared between versions of Python, so none of them may write it in its own way."""
    assert definition(load("def f(x, y=0):\n    return x[1:] + -y\n").f).decode() == (
        "(FunctionDef name= str:'f' args= (arguments args= [ (arg arg= str:'x' ) (arg arg= str:'y' ) ] "
        "defaults= [ (Constant value= int:0 ) ] ) body= [ (Return value= (BinOp left= (Subscript "
        "value= (Name id= str:'x' ctx= (Load ) ) slice= (Slice lower= (Constant value= int:1 ) ) ctx= (Load ) ) "
        "op= (Add ) right= (UnaryOp op= (USub ) operand= (Name id= str:'y' ctx= (Load ) ) ) ) ) ] )"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def f", "# a comment\n\n\ndef f"),
        ("    for", "    # a comment\n    for"),
        ("x[i] + 0", "(x[i]  +  0)"),
        ("def f", "@decorate\ndef f"),
    ],
)
def test_what_does_not_count(load, old, new):
    assert definition(load(TEXT.replace(old, new)).f) == definition(load(TEXT).f)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0 if", "0.0 if"),
        ("0 if", "False if"),
        ("is None", "is True"),
        ("is None", "== None"),
        ("-1.5", "1.5"),
        ("-1.5", "'-1.5'"),
        ("k=2", "k=3"),
        ("(x, out, *, k=2)", "(out, x, *, k=2)"),
        ("x[i] + 0", "(x[i] + 0,)"),
        ("def f(x, out, *,", "def f(x, out,"),
    ],
)
def test_what_counts(load, old, new):
    assert definition(load(TEXT.replace(old, new, 1)).f) != definition(load(TEXT).f)


def test_inner_functions_and_lambdas_have_definitions(load):
    text = "def make():\n    def f(x):\n        return x\n    return f, lambda x: x + 1\n"
    function, lambda_ = load(text).make()
    assert b"FunctionDef" in definition(function) and b"Lambda" in definition(lambda_)


def test_an_edited_file_is_noticed(load):
    module = load(TEXT)
    load(TEXT.replace("-1.5", "-2.5"))
    with pytest.raises(SourceError, match=r"does not hold the source that f was compiled from"):
        definition(module.f)


def test_two_definitions_on_one_line_are_refused(load):
    first, second = load("first, second = lambda x: x, lambda x: x + 1\n").__dict__["first"], None
    assert second is None
    with pytest.raises(SourceError, match="2 definitions of <lambda> begin here"):
        definition(first)


def test_a_function_without_a_file_has_none():
    space = {}
    exec("def f(x): return x", space)  # noqa: S102
    with pytest.raises(SourceError, match="does not hold the source"):
        definition(space["f"])


def test_a_fingerprint_of_definitions_follows_what_a_function_refers_to(load):
    text = (
        "import numpy as np\nTABLE = np.arange(3)\ndef g(x): return x\ndef f(x): return g(x) + TABLE[0] + np.sin(x)\n"
    )
    module = load(text)
    assert definition(module.f) == definition(load(text.replace("return x\n", "return -x\n")).f)

    def hash_of(text):
        return fingerprint(load(text).f, definition=definition)

    hashes = [hash_of(t) for t in (text, "# comment\n" + text, text.replace("x\n", "-x\n", 1), text.replace("3", "4"))]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3
    assert np.arange(3).size == 3
