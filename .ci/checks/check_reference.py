"""Check that each public name is in the reference, has a docstring that covers its signature, and occurs in a test.

Griffe parses the sources without importing them. Three things are not checked: the truth of a docstring, the source of
a formula, and errors raised deeper than in the helpers that a function calls directly.
"""

from __future__ import annotations

import ast
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent

import griffe

ROOT = Path(__file__).parents[2]
#: The public modules of each package.
PUBLIC = {
    "core": ("xlakernel.core", "xlakernel.core.errors", "xlakernel.core.testing", "xlakernel.core.testing.conformance"),
    "numba": ("xlakernel.numba",),
    "cuda": ("xlakernel.cuda",),
    "warp": ("xlakernel.warp",),
    "sparse": ("xlakernel.sparse", "xlakernel.sparse.networks"),
}
#: Packages whose functions must document the shape and dtype of each argument, except for the arguments listed.
ARRAY_FUNCTIONS = {
    "sparse": frozenset({"shape", "transpose", "backend", "rng", "draw", "mean"})
    | {"rule", "params", "weighted"}
    | {"blocks", "mats", "A", "B", "matrix", "file", "m", "n", "k", "offsets", "format", "dtype"}
    | {"network", "state", "parameters", "key", "steps", "piece", "inputs", "record", "progress"}
}
#: Words that document a dtype.
DTYPE = re.compile(r"\b(dtypes?|bool|integers?|u?int\d+|float\d+|bfloat16|complex|real)\b")
SHAPE = re.compile(r"``\([^`]*\)``")
#: Names of quantities without a unit, unlike *seconds* and *nbytes*; their descriptions must contain a UNIT.
QUANTITY = re.compile(r"(^|_)(mem|memory|time|timeout|duration|delay|interval)$")
UNIT = re.compile(r"\b(seconds?|milliseconds|ms|µs|bytes|KiB|MiB|GiB)\b")
#: Methods of the pytree protocol, which JAX documents.
NOT_OURS = {"tree_flatten", "tree_unflatten", "tree_flatten_with_keys"}
#: Classes that users receive and do not construct, so that the parameters of ``__init__`` are not checked.
GIVEN = {"Exported", "KernelCheckError", "SparseMatrix"}
#: Modules that may be tested in any package.
SHARED = {"xlakernel.core.errors"}

Definition = griffe.Class | griffe.Function


def load(root: Path) -> griffe.Module:
    """Read the packages: the module ``xlakernel``, whose parts lie in several folders."""
    sources = sorted(root.glob("packages/xlakernel-*/src"))
    logging.getLogger("griffe").setLevel(logging.ERROR)  # Ruff reports documented parameters that do not exist
    loader = griffe.GriffeLoader(search_paths=sources, allow_inspection=False, docstring_parser=griffe.Parser.google)
    module = loader.load("xlakernel")
    assert isinstance(module, griffe.Module)
    return module


def find(root: griffe.Module, name: str) -> Definition | None:
    """Return the class or function with the full *name*, wherever it is defined; None: there is none."""
    try:
        found = root[name.removeprefix("xlakernel.")]
        found = found.final_target if found.is_alias else found
    except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
        return None
    return found if isinstance(found, Definition) else None


def public_names(module: griffe.Module) -> list[str]:
    """Return the public names of a module: its ``__all__``, else what it defines."""
    names = module.exports or [name for name, member in module.members.items() if isinstance(member, Definition)]
    return [str(name) for name in names if not str(name).startswith("_")]


def methods(owner: Definition, *, inherited: bool = False) -> Iterator[griffe.Function]:
    """Yield the public methods and properties of a class; with those of its bases that are ours, if *inherited*."""
    members = owner.all_members if inherited else owner.members
    for name, member in members.items() if owner.is_class else ():
        found = member.final_target if member.is_alias else member
        property_ = found.is_attribute and "property" in found.labels
        if not (found.is_function or property_) or name.startswith(("_", "test_")) or name in NOT_OURS:
            continue
        fixture = any("fixture" in str(decorator.value) for decorator in getattr(found, "decorators", ()))
        if not fixture:  # pytest calls those
            yield found


# Names in the reference.


def documented(root: griffe.Module, pages: Mapping[str, str]) -> set[str]:
    """Return the full name of each definition that a page of the reference shows."""
    shown: set[str] = set()
    for text in pages.values():
        module = ""
        for kind, name, options in _directives(text):
            if kind == "currentmodule":
                module = name
            elif kind == "automodule":
                inside = root[name.removeprefix("xlakernel.")]
                shown |= {f"{inside.path}.{one}" for one in public_names(inside) if "members" in options}
            elif found := find(root, name if name.startswith("xlakernel.") else f"{module}.{name}"):
                wanted = {one.strip() for one in options.get("members", "").split(",") if one.strip()}
                listed = methods(found, inherited="inherited-members" in options) if "members" in options else ()
                shown |= {found.path, *(one.path for one in listed if not wanted or one.name in wanted)}
    return shown


def _directives(text: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    pattern = r"^\.\. (currentmodule|automodule|autoclass|autofunction):: (\S+)\n((?: +:.*\n)*)"
    for kind, name, options in re.findall(pattern, text, re.MULTILINE):
        yield kind, name, dict(re.findall(r":([\w-]+): ?(.*)", options))


def is_shown(root: griffe.Module, owner: Definition, one: Definition, shown: set[str]) -> bool:
    """Return True if the reference shows *one*, or, for a method, one of the same name in a related class."""
    if one.path in shown or one is owner:
        return one.path in shown
    others = (find(root, path.rpartition(".")[0]) for path in shown if path.endswith(f".{one.name}"))
    return any(isinstance(other, griffe.Class) and family(owner) & family(other) for other in others)


def family(one: griffe.Class) -> set[str]:
    """Return the names of a class and of its bases in these packages."""
    return {one.path, *(base.path for base in one.mro())}


# Contents of docstrings.


def sections(one: Definition) -> dict[str, dict[str, str]]:
    """Return the parameters, the attributes and the errors in a docstring, each name with its text."""
    found: dict[str, dict[str, str]] = {"parameters": {}, "attributes": {}, "raises": {}}
    for section in one.docstring.parsed if one.docstring is not None else ():
        if (entries := found.get(section.kind.value)) is not None:
            for item in section.value:
                names = str(item.annotation) if section.kind.value == "raises" else item.name
                entries |= {name.lstrip("*"): item.description for name in re.split(r", | and ", names)}
    return found


def docstring_problems(one: Definition, package: str, errors: set[str]) -> Iterator[str]:
    """Yield the items that are missing from the docstring of one definition."""
    if one.docstring is None:
        yield "it has no docstring"
        return
    said = sections(one)
    listed = said["parameters"] | said["attributes"]
    for parameter in parameters(one):
        if parameter not in listed:
            yield f"the parameter {parameter} is not under Args"
    for name, text in listed.items():
        if QUANTITY.search(name) and not UNIT.search(text):
            yield f"{name} is a quantity without a unit"
    for name in sorted((raised(one) & errors) - said["raises"].keys()):
        yield f"it raises {name}, which is not under Raises"
    if package in ARRAY_FUNCTIONS and one.parent is not None and one.is_function and one.parent.is_module:
        for name, text in said["parameters"].items():
            if name not in ARRAY_FUNCTIONS[package] and not SHAPE.search(text):
                yield f"the array {name} has no shape, such as ``(n,)``"
            if name not in ARRAY_FUNCTIONS[package] and not DTYPE.search(text):
                yield f"the array {name} has no dtype"


def parameters(one: Definition) -> list[str]:
    """Return the names of a definition's parameters, except for ``self``, ``cls`` and those that begin with ``_``."""
    if one.is_attribute or (one.is_class and one.name in GIVEN):
        return []
    given = (parameter.name.lstrip("*") for parameter in one.parameters)
    return [name for name in given if name not in ("self", "cls") and not name.startswith("_")]


# Errors that a function raises.


def raised(one: Definition, *, deeper: bool = True) -> set[str]:
    """Return the names of the errors that a definition, or a helper that it calls directly, raises."""
    runs = one.all_members.get("__init__") if one.is_class else one
    if runs is None or not runs.source:
        return set()
    found: set[str] = set()
    caught: set[str] = set()
    for node in _own_nodes(ast.parse(dedent(runs.source)).body[0]):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found.add(ast.unparse(node.exc.func).rpartition(".")[2])
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            caught |= set(re.findall(r"\w+", ast.unparse(node.type)))
        elif deeper and isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            root = runs.package
            helper = find(root, f"{runs.module.path}.{node.func.id}")
            found |= raised(helper, deeper=False) if isinstance(helper, griffe.Function) else set()
    return found - caught


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when a function is called, without the bodies of nested functions and classes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


# The whole check.


def problems(root: Path, public: Mapping[str, tuple[str, ...]] = PUBLIC) -> Iterator[str]:
    """Yield one line for each problem in the reference, the docstrings or the tests."""
    loaded = load(root)
    pages = {path.name: path.read_text("utf-8") for path in root.glob("docs/reference/*.md")}
    shown = documented(loaded, pages)
    errors = set(public_names(loaded["core.errors"]))
    folders = {path.name.removeprefix("xlakernel-") for path in root.glob("packages/xlakernel-*")}
    if folders != public.keys():
        yield f"packages/ has {sorted(folders)}, and PUBLIC {sorted(public)}"
    words = {package: _words(root, package) for package in public}
    done: set[str] = set()
    for package, module in ((package, module) for package, modules in public.items() for module in modules):
        inside = loaded[module.removeprefix("xlakernel.")]
        tested = set().union(*words.values()) if module in SHARED else words[package]
        if not (names := public_names(inside)):
            yield f"{module}: no public name was found in it; is there an __all__ that cannot be read?"
        for name in names:
            found = find(loaded, f"{module}.{name}")
            # A module is documented by its own directive; a constant must at least be mentioned on a page.
            is_module = name in inside.modules
            if found is None and not is_module and not re.search(rf"\b{name}\b", "".join(pages.values())):
                yield f"{module}.{name}: it is not in docs/reference"
            for one in (found, *methods(found, inherited=True)) if found is not None else ():
                if one.path in done:
                    continue
                done.add(one.path)
                owner = found if one is found else one.parent
                if not is_shown(loaded, owner, one, shown):
                    yield f"{one.path}: it is not in docs/reference"
                if one.name not in tested:
                    yield f"{one.path}: no test of xlakernel-{package} has its name"
                for problem in docstring_problems(one, package, errors):
                    yield f"{one.path}: {problem}"


def _words(root: Path, package: str) -> set[str]:
    """Return the words in the tests of a package."""
    paths = root.glob(f"packages/xlakernel-{package}/tests/**/*.py")
    return set(re.findall(r"\w+", "\n".join(path.read_text("utf-8") for path in paths)))


if __name__ == "__main__":
    if lines := list(problems(ROOT)):
        sys.exit("\n".join([*lines, f"{len(lines)} problems"]))
    print("each public name is in the reference, with its arguments and errors, and occurs in a test")
