"""Check the reference: it names all that is public, docstrings say what signatures do, and each name has a test.

It reads sources, and imports none of them. What it cannot see is left to readers: whether what a docstring says is
true, where a formula is from, and errors that a function gets from deeper than the helpers which it calls itself.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The modules that users import from, by package.
PUBLIC = {
    "core": ("xlakernel.core", "xlakernel.core.errors", "xlakernel.core.testing", "xlakernel.core.testing.conformance"),
    "numba": ("xlakernel.numba",),
    "cuda": ("xlakernel.cuda",),
    "warp": ("xlakernel.warp",),
    "sparse": ("xlakernel.sparse",),
}
#: Functions whose arguments are arrays, but for these, and whose docstrings therefore have shapes and dtypes.
ARRAY_FUNCTIONS = {"sparse": frozenset({"shape", "transpose", "backend"})}
#: What says a dtype, or that any will do.
DTYPE = re.compile(r"\b(dtypes?|bool|integers?|u?int\d+|float\d+|bfloat16|complex|real)\b")
SHAPE = re.compile(r"``\([^`]*\)``")
#: Quantities whose names do not say their unit, as *seconds* and *nbytes* do, and the units that there are.
QUANTITY = re.compile(r"(^|_)(mem|memory|time|timeout|duration|delay|interval)$")
UNIT = re.compile(r"\b(seconds?|milliseconds|ms|µs|bytes|KiB|MiB|GiB)\b")
#: The protocol of pytrees, documented by JAX.
NOT_OURS = {"tree_flatten", "tree_unflatten", "tree_flatten_with_keys"}
#: Classes that users are given, and never make.
GIVEN = {"Exported", "KernelCheckError", "SparseMatrix"}
#: Modules that other packages use as well, whose tests may be there.
SHARED = {"xlakernel.core.errors"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Definition:
    """A class or function: where it is defined, under which name users have it, and its syntax tree."""

    module: str
    name: str
    node: ast.ClassDef | Function

    @property
    def doc(self) -> str:
        """Its docstring."""
        return ast.get_docstring(self.node) or ""


class Sources:
    """The packages' sources, found by the names of modules."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.parsed = functools.cache(self._parse)

    def path(self, module: str) -> Path | None:
        """Return the file of a module, if it is one of ours."""
        parts = module.split(".")
        if parts[0] != "xlakernel" or len(parts) < 2:
            return None
        base = self.root.joinpath("packages", f"xlakernel-{parts[1]}", "src", *parts)
        candidates = (base / "__init__.py", base.with_suffix(".py"))
        return next((path for path in candidates if path.is_file()), None)

    def _parse(self, module: str) -> ast.Module | None:
        path = self.path(module)
        return None if path is None else ast.parse(path.read_text("utf-8"), str(path))

    def find(self, module: str, name: str) -> Definition | None:
        """Return what *name* is in *module*, wherever it is defined."""
        tree = self.parsed(module)
        for node in tree.body if tree is not None else ():
            if isinstance(node, ast.ClassDef | Function) and node.name == name:
                return Definition(module, name, node)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        source = self._absolute(module, node)
                        # A module may have the name of a definition; `from . import x` may ask for either.
                        return None if self.path(f"{source}.{alias.name}") else self.find(source, alias.name)
        return None

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        path = self.path(module)
        parts = module.split(".") if path is not None and path.name == "__init__.py" else module.split(".")[:-1]
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def names(self, module: str) -> list[str]:
        """Return the public names of a module: its ``__all__``, else what it defines and exports on purpose."""
        tree = self.parsed(module)
        assert tree is not None, module
        found: list[str] = []
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                return [name for name in ast.literal_eval(node.value) if not name.startswith("_")]
            if isinstance(node, ast.ImportFrom):
                found += [alias.name for alias in node.names if alias.asname == alias.name]
            elif isinstance(node, ast.ClassDef | Function):
                found.append(node.name)
        return [name for name in found if not name.startswith("_")]

    def bases(self, definition: Definition) -> Iterator[Definition]:
        """Yield a class and its bases that are ours, nearest first."""
        yield definition
        if isinstance(definition.node, ast.ClassDef):
            for base in definition.node.bases:
                name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
                if found := self.find(definition.module, name):
                    yield from self.bases(found)


# What the reference has.


def documented(sources: Sources, pages: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return (module, qualified name) of each definition that a page of the reference shows."""
    shown: set[tuple[str, str]] = set()
    for text in pages.values():
        module = ""
        for kind, name, options in _directives(text):
            if kind == "currentmodule":
                module = name
            elif kind == "automodule":
                shown |= {(name, inside) for inside in sources.names(name)} if "members" in options else set()
            else:
                full = name if name.startswith("xlakernel.") else f"{module}.{name}"
                if (found := sources.find(*full.rpartition(".")[::2])) is not None:
                    shown |= {(found.module, found.name), *_members(sources, found, options)}
    return shown


def _directives(text: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    pattern = r"^\.\. (currentmodule|automodule|autoclass|autofunction):: (\S+)\n((?: +:.*\n)*)"
    for kind, name, options in re.findall(pattern, text, re.MULTILINE):
        yield kind, name, dict(re.findall(r":([\w-]+): ?(.*)", options))


def _members(sources: Sources, found: Definition, options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if "members" not in options:
        return
    wanted = {name.strip() for name in options["members"].split(",") if name.strip()}
    for owner in sources.bases(found) if "inherited-members" in options else [found]:
        for method in _methods(owner):
            if not wanted or method.name in wanted:
                yield owner.module, f"{owner.name}.{method.name}"


def _methods(owner: Definition) -> Iterator[Function]:
    for node in owner.node.body:
        if not isinstance(node, Function) or node.name.startswith(("_", "test_")) or node.name in NOT_OURS:
            continue
        if not any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list):  # those pytest calls
            yield node


# What a docstring says.


def sections(doc: str) -> dict[str, dict[str, str]]:
    """Return the entries of a docstring's sections, each name with its text."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    names: list[str] = []
    for line in doc.splitlines():
        if re.fullmatch(r"[A-Z][a-z]+:", line):
            current = found.setdefault(line[:-1], {})
        elif line and not line.startswith(" "):
            current = None
        elif current is not None and (entry := re.match(r"  (\S.*?): (.*)", line)):
            names = [name.lstrip("*") for name in re.split(r", | and ", entry[1])]
            current |= dict.fromkeys(names, entry[2])
        elif current is not None and line.startswith("    "):
            current |= {name: f"{current[name]} {line.strip()}" for name in names if name in current}
    return found


def parameters(node: Function) -> list[str]:
    """Return the names of a function's parameters, but for those that Python fills or that begin with ``_``."""
    given = node.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    return [a.arg for a in named if a.arg not in ("self", "cls") and not a.arg.startswith("_")]


def _fields(node: ast.ClassDef) -> list[str] | None:
    """Return the fields of a dataclass; None for another class."""
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return None
    named = [
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]
    return [name for name in named if not name.startswith("_")]


def argument_problems(sources: Sources, definition: Definition, doc: str) -> Iterator[str]:
    """Yield what *doc* says of the arguments that is not so, and what it does not say."""
    node = definition.node
    described = sections(doc)
    listed = described.get("Args", {})
    if isinstance(node, ast.ClassDef):
        if node.name in GIVEN:
            return
        fields = _fields(node)
        init = _init(sources, definition)
        expected = fields if fields is not None else [] if init is None else parameters(init.node)
        listed = listed | (described.get("Attributes", {}) if fields is not None else {})
        invented = [] if fields is not None else sorted(listed.keys() - set(expected))
    else:
        decorated = any(ast.unparse(item) in ("property", "functools.cached_property") for item in node.decorator_list)
        expected = [] if decorated else parameters(node)
        invented = sorted(listed.keys() - set(expected))
    for name in expected:
        if name not in listed:
            yield f"the parameter {name} is not under Args"
    for name in invented:
        yield f"{name} is under Args, and is no parameter"
    for name, text in listed.items():
        if QUANTITY.search(name) and not UNIT.search(text):
            yield f"{name} is a quantity, and its unit is not said"


def _init(sources: Sources, definition: Definition) -> Definition | None:
    """Return the ``__init__`` of a class, its own or that of a base."""
    for owner in sources.bases(definition):
        for item in owner.node.body:
            if isinstance(item, Function) and item.name == "__init__":
                return Definition(owner.module, f"{owner.name}.__init__", item)
    return None


def array_problems(doc: str, exempt: frozenset[str]) -> Iterator[str]:
    """Yield the arguments of a function of arrays whose shape or dtype its docstring does not say."""
    for name, text in sections(doc).get("Args", {}).items():
        if name not in exempt and not SHAPE.search(text):
            yield f"the array {name} has no shape, such as ``(n,)``"
        if name not in exempt and not DTYPE.search(text):
            yield f"the array {name} has no dtype"


# What a function raises.


def raised(sources: Sources, module: str, node: Function, errors: set[str], *, deeper: bool = True) -> set[str]:
    """Return the errors of ours that a function raises itself, or in a helper of its package that it calls."""
    found: set[str] = set()
    caught: set[str] = set()
    for inner in _own_nodes(node):
        if isinstance(inner, ast.Raise) and isinstance(inner.exc, ast.Call):
            found.add(ast.unparse(inner.exc.func).rpartition(".")[2])
        elif isinstance(inner, ast.ExceptHandler) and inner.type is not None:
            caught |= set(re.findall(r"\w+", ast.unparse(inner.type)))
        elif deeper and isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
            helper = sources.find(module, inner.func.id)
            if helper is not None and isinstance(helper.node, Function):
                found |= raised(sources, helper.module, helper.node, errors, deeper=False)
    return (found & errors) - caught


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a function is called: not the insides of functions that it makes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


def raise_problems(sources: Sources, definition: Definition, doc: str, errors: set[str]) -> Iterator[str]:
    """Yield the errors that a function raises and its docstring does not list."""
    runs = _init(sources, definition) if isinstance(definition.node, ast.ClassDef) else definition
    listed = set(sections(doc).get("Raises", {}))
    if runs is not None:
        for name in sorted(raised(sources, runs.module, runs.node, errors) - listed):
            yield f"it raises {name}, which is not under Raises"


# All of it.


def problems(root: Path, public: Mapping[str, tuple[str, ...]] = PUBLIC) -> Iterator[str]:
    """Yield one line for everything that is wrong."""
    sources = Sources(root)
    pages = {path.name: path.read_text("utf-8") for path in root.glob("docs/reference/*.md")}
    shown = documented(sources, pages)
    errors = set(sources.names("xlakernel.core.errors"))
    folders = {path.name.removeprefix("xlakernel-") for path in root.glob("packages/xlakernel-*")}
    if folders != public.keys():
        yield f"packages/ has {sorted(folders)}, and PUBLIC {sorted(public)}"
    words = {package: _words(root, package) for package in public}
    for package, modules in public.items():
        done: set[tuple[str, str]] = set()
        for module in modules:
            tested = set().union(*words.values()) if module in SHARED else words[package]
            names = sources.names(module)
            if not names:
                yield f"{module}: no public name was found in it; is there an __all__ that cannot be read?"
            for name in names:
                found = sources.find(module, name)
                # A module has a name of its own in the reference; a table is at least spoken of.
                is_module = sources.path(f"{module}.{name}") is not None
                if found is None and not is_module and not re.search(rf"\b{name}\b", "".join(pages.values())):
                    yield f"{module}.{name}: it is not in docs/reference"
                for owner in sources.bases(found) if found is not None else ():
                    for one in _parts(owner, inherited=owner != found):
                        if (one.module, one.name) in done:
                            continue
                        done.add((one.module, one.name))
                        if not _is_shown(sources, owner, one, shown):
                            yield f"{module}.{one.name}: it is not in docs/reference"
                        if one.name.rpartition(".")[2] not in tested:
                            yield f"{module}.{one.name}: no test of xlakernel-{package} has its name"
                        for problem in docstring_problems(sources, one, package, errors):
                            yield f"{module}.{one.name}: {problem}"


def _words(root: Path, package: str) -> set[str]:
    """Return the words in the tests of a package."""
    paths = root.glob(f"packages/xlakernel-{package}/tests/**/*.py")
    return set(re.findall(r"\w+", "\n".join(path.read_text("utf-8") for path in paths)))


def _parts(owner: Definition, *, inherited: bool) -> Iterator[Definition]:
    """Yield a definition, unless it is *inherited*, and the methods of a class."""
    if not inherited:
        yield owner
    if isinstance(owner.node, ast.ClassDef):
        for method in _methods(owner):
            yield Definition(owner.module, f"{owner.name}.{method.name}", method)


def _is_shown(sources: Sources, owner: Definition, one: Definition, shown: set[tuple[str, str]]) -> bool:
    """Whether the reference has it, or for a method one of its name in a class of the same family."""
    if one == owner or (one.module, one.name) in shown:
        return (one.module, one.name) in shown
    *_, root = sources.bases(owner)
    method = one.name.rpartition(".")[2]
    others = [sources.find(module, name.partition(".")[0]) for module, name in shown if name.endswith(f".{method}")]
    return any(other is not None and root in sources.bases(other) for other in others)


def docstring_problems(sources: Sources, one: Definition, package: str, errors: set[str]) -> Iterator[str]:
    """Yield what is wrong with the docstring of one definition."""
    if not one.doc:
        yield "it has no docstring"
        return
    yield from argument_problems(sources, one, one.doc)
    yield from raise_problems(sources, one, one.doc, errors)
    if package in ARRAY_FUNCTIONS and isinstance(one.node, Function) and "." not in one.name:
        yield from array_problems(one.doc, ARRAY_FUNCTIONS[package])


if __name__ == "__main__":
    if lines := list(problems(ROOT)):
        sys.exit("\n".join([*lines, f"{len(lines)} to mend"]))
    print("the reference has every public name, its arguments and its errors; each has a test")
