"""Outputs of a page's cells, recorded on a GPU and shown where the page is built without one.

    python docs/record_outputs.py docs/tutorials/numba-cuda.md

runs the cells of a page in order and writes their outputs beside it, with a hash of each source and the machine
(``numba-cuda.outputs.json``). It needs only what the cells import. Like IPython, it shows the value of a cell's last
expression, the figures that a cell draws with Matplotlib, and the error of a cell with the tag ``raises-exception``.
Figures are files beside the page (``libraries-1.svg``). `conf.py` shows the outputs below their cells, and refuses to
build a page whose cells are no longer those that were recorded.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import io
import itertools
import json
import linecache
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# A cell: its options, and its source.
_CELL = re.compile(r"^```\{code-cell\}\n((?::[^\n]*\n)*)\n?(.*?)^```$", re.MULTILINE | re.DOTALL)
_HIDDEN, _RAISES = "remove-cell", "raises-exception"
#: The placeholder for the name of the machine.
_PLACE = "<!-- recorded on -->"
# The start of the advice that JAX appends to messages of errors, on the frames that a traceback omits.
_END_OF_MESSAGE = "\n--------------------\nFor simplicity, JAX has removed"


class StaleOutputsError(ValueError):
    """The recorded outputs are not those of the page's cells."""


class CellError(RuntimeError):
    """A cell of a page failed, did not fail as it should, or wrote to stderr."""


class Cell(NamedTuple):
    """A cell of a page."""

    source: str
    tags: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        """A hash of the cell."""
        return hashlib.sha256(repr((self.source, sorted(self.tags))).encode()).hexdigest()[:16]


class Output(NamedTuple):
    """The text that a cell printed, and its figures as SVG."""

    text: str
    figures: tuple[str, ...] = ()


def _cell(match: re.Match[str]) -> Cell:
    options, source = match.groups()
    tags = re.findall(r"[\w-]+", "".join(re.findall(r"^:tags:(.*)", options, re.MULTILINE)))
    return Cell(source, frozenset(tags))


def cells_of(text: str) -> list[Cell]:
    """Return the cells of a page."""
    return [_cell(match) for match in _CELL.finditer(text)]


def scripted(text: str) -> list[Cell]:
    """Return the cells that a plain script can run: without magics, and those that raise no error."""
    cells = (cell for cell in cells_of(text) if _RAISES not in cell.tags)
    return [cell._replace(source=re.sub(r"^%.*$", "", cell.source, flags=re.MULTILINE)) for cell in cells]


def outputs_beside(page: Path) -> Path:
    """Return the file with the outputs of *page*."""
    return page.with_suffix(".outputs.json")


def run(cells: Sequence[Cell], page: str, namespace: dict[str, Any] | None = None) -> list[Output]:
    """Run cells in one namespace; return the output of each.

    Args:
      cells: the cells.
      page: its name, for messages.
      namespace: where they run; a new one if None.

    Raises:
      CellError: if one raises without the tag ``raises-exception``, or has the tag and does not raise, or writes to
        stderr: a tutorial shows no warnings.
    """
    namespace = {"__name__": "__main__"} if namespace is None else namespace
    outputs = []
    for number, cell in enumerate(cells, 1):
        name, raises = f"<{page}, cell {number}>", _RAISES in cell.tags
        # Tracebacks show the source; `inspect` reads it, and Warp distinguishes kernels by it.
        linecache.cache[name] = (len(cell.source), None, cell.source.splitlines(keepends=True), name)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                _execute(cell.source, name, namespace)
            except Exception as error:  # of any kind: a cell is a user's code
                message = f"{type(error).__name__}: {str(error).partition(_END_OF_MESSAGE)[0]}"
                if not raises:
                    raise CellError(f"{name}: {message}\nIt had printed:\n{out.getvalue()}") from error
                print(message)
            else:
                if raises:
                    raise CellError(f"{name}: it raises no error.")
        if err.getvalue():
            raise CellError(f"{name}: it wrote to stderr:\n{err.getvalue()}")
        outputs.append(Output(out.getvalue(), _figures()))
    return outputs


def _figures() -> tuple[str, ...]:
    """Return the open figures of Matplotlib as SVG, and close them."""
    if "matplotlib.pyplot" not in sys.modules:
        return ()
    plt, found = sys.modules["matplotlib.pyplot"], []
    for number in plt.get_fignums():
        file = io.StringIO()
        plt.figure(number).savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
        found.append(file.getvalue())
    plt.close("all")
    return tuple(found)


def _execute(source: str, name: str, namespace: dict[str, Any]) -> None:
    """Execute a cell, and print the value of its last expression if that is not None."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    # Annotations are not strings in a cell, unlike in this file: Warp reads them.
    exec(compile(tree, name, "exec", dont_inherit=True), namespace)  # noqa: S102  # the purpose of a page
    if last is not None:
        value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace)  # noqa: S307  # as above
        if value is not None:
            print(repr(value))


def show(text: str, recorded: Mapping[str, Any], page: str) -> str:
    """Return the Markdown of a page with the recorded output below each cell.

    Args:
      text: its Markdown.
      recorded: the content of the file that `record` wrote.
      page: its name, for messages.

    Raises:
      StaleOutputsError: if the cells are not those that were recorded.
    """
    again = f"Record it again, where there is a GPU: python docs/record_outputs.py docs/{page}"
    cells, outputs = cells_of(text), recorded["cells"]
    if len(cells) != len(outputs):
        raise StaleOutputsError(f"{page}: it has {len(cells)} cells; {len(outputs)} are recorded. {again}")
    for number, (cell, output) in enumerate(zip(cells, outputs, strict=True), 1):
        if cell.digest != output["hash"]:
            first = cell.source.partition("\n")[0]
            raise StaleOutputsError(f"{page}: cell {number} ({first!r}) has changed since it was recorded. {again}")
    if text.count(_PLACE) != 1:
        raise StaleOutputsError(
            f"{page}: {_PLACE!r} must stand in it once; it stands there {text.count(_PLACE)} times."
        )
    rest = iter(outputs)
    text = _CELL.sub(lambda match: _with_output(_cell(match), **next(rest)), text)
    return text.replace(_PLACE, describe(recorded["machine"]))


def _with_output(cell: Cell, output: str, figures: Sequence[str] = (), **_: Any) -> str:
    if _HIDDEN in cell.tags:
        return ""
    code = f"```python\n{cell.source}```"
    text = [f"````{{code-block}} none\n:class: recorded\n\n{output}````"] if output else []
    return "\n\n".join([code, *text, *(f"![Figure of the cell above]({name})" for name in figures)])


def describe(machine: Mapping[str, Any]) -> str:
    """Return a sentence that names the machine and versions of a record."""
    gpu, versions = machine["gpu"], machine["versions"]
    names = ("jax", "numba-cuda", "xlakernel-cuda")
    count = f"{gpu['count']} × " if gpu["count"] > 1 else ""
    return (
        f"The outputs were recorded on {machine['date']}, on {count}{gpu['name']} with driver {gpu['driver']} (CUDA "
        f"{gpu['cuda']}), with Python {machine['python']}, "
        f"{', '.join(f'{name} {versions[name]}' for name in names if name in versions)}."
    )


def record(page: Path) -> Path:
    """Run the cells of *page* and write their outputs beside it; return that file."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    from _harness import machine

    described = machine()
    if "gpu" not in described:
        raise SystemExit(f"{page}: its outputs are recorded on a GPU, and JAX finds none: {described['devices']}.")
    cells = cells_of(page.read_text("utf-8"))
    outputs = run(cells, page.name)
    found: list[dict[str, Any]] = []
    numbers = itertools.count(1)
    for earlier in page.parent.glob(f"{page.stem}-[0-9]*.svg"):
        earlier.unlink()
    for cell, output in zip(cells, outputs, strict=True):
        figures = []
        for figure in output.figures:
            name = f"{page.stem}-{next(numbers)}.svg"
            page.with_name(name).write_text(figure, "utf-8")
            figures.append(name)
        found.append({"hash": cell.digest, "output": output.text} | ({"figures": figures} if figures else {}))
    path = outputs_beside(page)
    path.write_text(json.dumps({"machine": described, "cells": found}, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def main() -> None:
    """Record the pages that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", type=Path, nargs="+", metavar="page.md")
    os.environ |= {"MATPLOTLIBRC": str(Path(__file__).with_name("matplotlibrc")), "MPLBACKEND": "agg"}
    for page in parser.parse_args().pages:
        print(f"written: {record(page)}")


if __name__ == "__main__":
    main()
