"""Find every import in a Python source: statements, ``import_module`` of a literal, and ``jax._src``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """One imported name in full: ``a.b`` for ``from a import b``, with relative imports resolved."""

    line: int
    target: str
    at_import: bool  # runs when its module is imported: not in a function, not for types only

    def reaches(self, name: str) -> bool:
        """Return True if this imports *name* or a member of it."""
        return f"{self.target}.".startswith(f"{name}.")


def module_name(path: Path, root: Path) -> str:
    """Return the dotted name of the module in *path*, whose first package lies in *root*."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def find_imports(path: Path, root: Path) -> Iterator[Import]:
    """Yield a file's imports: statements anywhere, ``import_module`` of a literal, ``jax._src``."""
    name = module_name(path, root)
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    yield from _walk(ast.parse(path.read_text("utf-8"), str(path)), package, at_import=True)


def _walk(node: ast.AST, package: str, *, at_import: bool) -> Iterator[Import]:
    for target in _targets(node, package):
        yield Import(node.lineno, target, at_import)  # type: ignore[attr-defined]
    for field, value in ast.iter_fields(node):
        deferred = _is_deferred(node, field)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child, package, at_import=at_import and not deferred)


def _is_deferred(node: ast.AST, field: str) -> bool:
    """Return True if the children in *field* of *node* do not run while the module is imported."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return field == "body"
    if isinstance(node, ast.If) and field == "body":
        return ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
    return False


def _targets(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            base = _absolute("." * level + (module or ""), package)
            return [f"{base}.{alias.name}" for alias in names]
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return [_absolute(name, package)]
        case ast.Attribute(value=ast.Name(id="jax"), attr="_src"):
            return ["jax._src"]
    return []


def _absolute(name: str, package: str) -> str:
    level = len(name) - len(name.lstrip("."))
    if not level:
        return name
    parents = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join([*parents, name[level:]]).rstrip(".")
