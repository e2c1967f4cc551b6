"""What the cells of a page print that needs a GPU: recorded where there is one, shown where the page is built.

    python docs/record_outputs.py docs/tutorials/numba-cuda.md

runs the cells of a page in order, as a plain script would, and writes beside it what each of them prints, with a hash
of its source and the machine (``numba-cuda.outputs.json``). It needs only what the cells import. `conf.py` shows the
recorded outputs below their cells, and refuses to build a page whose cells are no longer those that were recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import linecache
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# A cell, and the options that may stand above its source.
_CELL = re.compile(r"^```\{code-cell\}\n(?:(?::[^\n]*\n)+\n?)?(.*?)^```$", re.MULTILINE | re.DOTALL)
# The start of a cell whose error is shown.
_RAISES = re.compile(r"```\{code-cell\}\n:tags: \[[^]\n]*raises-exception").match
#: Where in a page the machine is to be named.
_PLACE = "<!-- recorded on -->"


class StaleOutputsError(ValueError):
    """What is recorded is not what the cells of the page print."""


class CellError(RuntimeError):
    """A cell of a page failed, or wrote to stderr."""


def cells_of(text: str) -> list[str]:
    """Return the sources of a page's cells."""
    return _CELL.findall(text)


def scripted(text: str) -> list[str]:
    """Return the sources of the cells that a plain script can run: without magics, and those that raise no error."""
    return [re.sub(r"^%.*$", "", cell[1], flags=re.MULTILINE) for cell in _CELL.finditer(text) if not _RAISES(cell[0])]


def digest(source: str) -> str:
    """Return what changes when a cell does."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def outputs_beside(page: Path) -> Path:
    """Return the file with the outputs of *page*."""
    return page.with_suffix(".outputs.json")


def run(sources: Sequence[str], page: str, namespace: dict[str, Any] | None = None) -> list[str]:
    """Run cells in one namespace; return what each printed.

    Args:
      sources: of the cells.
      page: its name, for messages.
      namespace: where they run; a new one if None.

    Raises:
      CellError: if one raises, or writes to stderr: what warns a reader does not belong into a tutorial.
    """
    namespace = {"__name__": "__main__"} if namespace is None else namespace
    printed = []
    for number, source in enumerate(sources, 1):
        name = f"<{page}, cell {number}>"
        # Tracebacks show the source, and so does `inspect`, which tells kernels apart by it.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                # Annotations are not strings there, as they are here: Warp reads them.
                exec(compile(source, name, "exec", dont_inherit=True), namespace)  # noqa: S102  # what a page is for
        except Exception as error:
            raise CellError(f"{name}: {type(error).__name__}: {error}\nIt had printed:\n{out.getvalue()}") from error
        if err.getvalue():
            raise CellError(f"{name}: it wrote to stderr:\n{err.getvalue()}")
        printed.append(out.getvalue())
    return printed


def show(text: str, recorded: Mapping[str, Any], page: str) -> str:
    """Return the Markdown of a page with the recorded output below each cell.

    Args:
      text: its Markdown.
      recorded: what `record` wrote.
      page: its name, for messages.

    Raises:
      StaleOutputsError: if the cells are not those that were recorded.
    """
    again = f"Record it again, where there is a GPU: python docs/record_outputs.py docs/{page}"
    sources, outputs = cells_of(text), recorded["cells"]
    if len(sources) != len(outputs):
        raise StaleOutputsError(f"{page}: it has {len(sources)} cells; {len(outputs)} are recorded. {again}")
    for number, (source, output) in enumerate(zip(sources, outputs, strict=True), 1):
        if digest(source) != output["hash"]:
            first = source.partition("\n")[0]
            raise StaleOutputsError(f"{page}: cell {number} ({first!r}) has changed since it was recorded. {again}")
    if text.count(_PLACE) != 1:
        raise StaleOutputsError(
            f"{page}: {_PLACE!r} must stand in it once; it stands there {text.count(_PLACE)} times."
        )
    rest = iter(outputs)
    text = _CELL.sub(lambda cell: _with_output(cell[1], next(rest)["output"]), text)
    return text.replace(_PLACE, describe(recorded["machine"]))


def _with_output(source: str, output: str) -> str:
    code = f"```python\n{source}```"
    return f"{code}\n\n````{{code-block}} none\n:class: recorded\n\n{output}````" if output else code


def describe(machine: Mapping[str, Any]) -> str:
    """Return a sentence that says what a page was recorded on."""
    gpu, versions = machine["gpu"], machine["versions"]
    names = ("jax", "numba-cuda", "xlakernel-cuda")
    count = f"{gpu['count']} × " if gpu["count"] > 1 else ""
    return (
        f"The outputs were recorded on {machine['date']}, on {count}{gpu['name']} with driver {gpu['driver']} (CUDA "
        f"{gpu['cuda']}), with Python {machine['python']}, "
        f"{', '.join(f'{name} {versions[name]}' for name in names if name in versions)}."
    )


def record(page: Path) -> Path:
    """Run the cells of *page* and write what they print beside it; return that file."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    from _harness import machine

    described = machine()
    if "gpu" not in described:
        raise SystemExit(f"{page}: its outputs are recorded on a GPU, and JAX finds none: {described['devices']}.")
    sources = cells_of(page.read_text("utf-8"))
    outputs = run(sources, page.name)
    cells = [{"hash": digest(source), "output": output} for source, output in zip(sources, outputs, strict=True)]
    path = outputs_beside(page)
    path.write_text(json.dumps({"machine": described, "cells": cells}, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def main() -> None:
    """Record the pages that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", type=Path, nargs="+", metavar="page.md")
    for page in parser.parse_args().pages:
        print(f"written: {record(page)}")


if __name__ == "__main__":
    main()
