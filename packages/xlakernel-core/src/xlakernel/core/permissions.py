"""What an exported program needs to import and to unpickle, and whether that is allowed."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .artifact import Target
from .errors import ArgumentError, ExportError

_DIGEST = "sha256:"


@dataclasses.dataclass(frozen=True)
class Needs:
    """What is needed to make a target again.

    Attributes:
      modules: the modules that are imported, besides those of xlakernel.
      pickles: the kernels that are unpickled: name → ``"sha256:..."`` of the pickle.
    """

    modules: frozenset[str]
    pickles: Mapping[str, str]

    @classmethod
    def of(cls, target: Target) -> Needs:
        """Return those of a target.

        Raises:
          ExportError: if its recipe is malformed.
        """
        modules: set[str] = set()
        pickles: dict[str, str] = {}
        data = target.recipe.data
        # Whatever the backend: references and pickles are found at the top of a recipe, and nowhere else.
        for value in data.values():
            if isinstance(value, Mapping) and "pickle" in value:
                pickles[str(data.get("name"))] = _DIGEST + hashlib.sha256(_pickle(target, value["pickle"])).hexdigest()
            elif isinstance(value, Mapping) and "module" in value:
                modules.add(str(value["module"]))
        imports = data.get("imports", ())
        modules.update(map(str, imports if isinstance(imports, list) else ()))
        return cls(frozenset(modules), pickles)


def check_allowed(targets: Iterable[Target], allow: Any) -> None:
    """Raise `ExportError` unless all that the targets need is allowed.

    Args:
      targets: what is to be made.
      allow: names of modules, which stand for all below them too, and digests of pickles; None: everything.

    Raises:
      ArgumentError: if *allow* is something else.
    """
    if allow is None:
        return
    if isinstance(allow, (str, bytes)) or not all(isinstance(item, str) for item in _items(allow)):
        raise ArgumentError(
            f"deserialize: allow is {allow!r}; expected a collection of strings, each the name of a module or "
            f'"{_DIGEST}..." of a pickled kernel, or None for everything.'
        )
    allowed = frozenset(allow)
    missing: dict[str, str] = {}
    for target in targets:
        needs = Needs.of(target)
        missing |= {module: f"import {module}" for module in needs.modules if not _is_below(module, allowed)}
        missing |= {
            digest: f"unpickle the kernel {name} ({digest})"
            for name, digest in needs.pickles.items()
            if digest not in allowed
        }
    if missing:
        raise ExportError(
            f"deserialize: to load the program is to {', '.join(missing[key] for key in sorted(missing))}, which allow= "
            f"does not name. Nothing was imported or unpickled. If you trust that, pass allow={sorted({*allowed, *missing})}."
        )


def _items(allow: Any) -> Iterator[Any]:
    try:
        yield from allow
    except TypeError:
        yield None


def _is_below(module: str, allowed: frozenset[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:count]) in allowed for count in range(1, len(parts) + 1))


def _pickle(target: Target, text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ExportError(f"deserialize: the recipe of {target.name!r} has a pickle that is none: {error}.") from error
