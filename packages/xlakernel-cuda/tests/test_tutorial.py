"""The pages in docs that need a GPU: their cells on a GPU, and the recorded outputs without one."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

DOCS = Path(__file__).parents[3] / "docs"
#: Pages whose outputs are recorded, and what they import beside our packages.
PAGES = {
    "tutorials/numba-cuda.md": ["cupy"],
    "cookbook/libraries.md": ["cupy", "torch", "triton", "cuda.core", "matplotlib"],
}

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="docs/ is in the repository, not in a source archive")

TEXT = """# A page

It is here. <!-- recorded on -->

```{code-cell}
x = 1
print("one", x)
```

Some words.

```{code-cell}
:tags: [remove-cell]

x += 1
```

```python
never = "run"
```

```{code-cell}
print("two", x)
x + 1
```

```{code-cell}
:tags: [raises-exception]

raise ValueError("too large")
```
"""
MACHINE = {
    "gpu": {"name": "NVIDIA H200", "count": 1, "driver": "580.1", "cuda": "13.0"},
    "versions": {"jax": "0.12.0", "numba-cuda": "0.30.4"},
    "python": "3.12.1",
    "date": "2026-01-02",
}


@pytest.fixture(scope="module")
def outputs():
    """Return the module that records outputs and shows them."""
    spec = importlib.util.spec_from_file_location("record_outputs", DOCS / "record_outputs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def recorded(outputs):
    cells = outputs.cells_of(TEXT)
    found = outputs.run(cells, "page.md")
    pairs = zip(cells, found, strict=True)
    return {"machine": MACHINE, "cells": [{"hash": cell.digest, "output": output.text} for cell, output in pairs]}


@pytest.mark.gpu
# torch.compile imports a module of torch that calls it: https://github.com/pytorch/pytorch/pull/189914
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("page", PAGES)
def test_every_cell_runs(outputs, page):
    for module in PAGES[page]:
        pytest.importorskip(module, reason=f"the page uses {module}")
    cells = outputs.cells_of((DOCS / page).read_text("utf-8"))
    assert len(cells) > 10
    outputs.run(cells, page)


@pytest.mark.parametrize("page", PAGES)
def test_every_cell_compiles(outputs, page):
    for number, cell in enumerate(outputs.cells_of((DOCS / page).read_text("utf-8")), 1):
        compile(cell.source, f"<cell {number}>", "exec")


def test_cells_run_in_one_namespace_and_blocks_of_code_do_not(outputs):
    namespace = {}
    found = outputs.run(outputs.cells_of(TEXT), "page.md", namespace)
    assert found == [(text, ()) for text in ("one 1\n", "", "two 2\n3\n", "ValueError: too large\n")]
    assert "never" not in namespace


def test_a_cell_is_code_without_its_options_and_without_the_flags_of_who_runs_it(outputs):
    (cell,) = outputs.cells_of("```{code-cell}\n:tags: [remove-stderr]\n\ndef f(x: 1 + 1): ...\n```\n")
    assert cell == ("def f(x: 1 + 1): ...\n", {"remove-stderr"})
    namespace = {}
    outputs.run([cell], "page.md", namespace)
    assert namespace["f"].__annotations__ == {"x": 2}


def test_outputs_are_shown_below_their_cells(outputs, recorded):
    shown = outputs.show(TEXT, recorded, "page.md")
    assert "{code-cell}" not in shown
    first, second = shown.index("one 1\n````"), shown.index("two 2\n3\n````")
    assert shown.index('print("one", x)') < first < shown.index("Some words.") < shown.index('print("two", x)') < second
    assert second < shown.index("ValueError: too large\n````")
    assert shown.count("{code-block} none") == 3
    assert "x += 1" not in shown  # it is hidden


def test_figures_are_files_below_their_cells(outputs, recorded, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib", reason="the figures are Matplotlib's")
    draw = "import matplotlib.pyplot as plt\nfor _ in range(2): plt.figure()\n"
    first, second = outputs.run([outputs.Cell(draw), outputs.Cell("plt.figure(); print(1)\n")], "page.md")
    assert [len(first.figures), len(second.figures)] == [2, 1]
    assert all("<svg" in figure for figure in first.figures)

    page = tmp_path / "page.md"
    page.write_text(TEXT, "utf-8")
    drawn = [outputs.Output("one 1\n", ("<svg>1", "<svg>2")), outputs.Output(""), outputs.Output("two", ("<svg>3",))]
    monkeypatch.setattr(outputs, "run", lambda *_: [*drawn, outputs.Output("ValueError: too large\n")])
    monkeypatch.setitem(sys.modules, "_harness", SimpleNamespace(machine=lambda: MACHINE))
    shown = outputs.show(TEXT, json.loads(outputs.record(page).read_text("utf-8")), "page.md")
    places = [shown.index(f"(page-{number}.svg)") for number in (1, 2, 3)]
    assert shown.index("one 1") < places[0] < places[1] < shown.index("Some words.") < places[2]
    for number in (1, 2, 3):
        assert (tmp_path / f"page-{number}.svg").read_text("utf-8") == f"<svg>{number}"


def test_the_machine_is_named(outputs, recorded):
    shown = outputs.show(TEXT, recorded, "page.md")
    assert "<!--" not in shown
    for part in ("NVIDIA H200", "driver 580.1", "CUDA 13.0", "Python 3.12.1", "numba-cuda 0.30.4", "2026-01-02"):
        assert part in shown


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("x += 1", "x += 2", r"cell 2 \('x \+= 2'\) has changed"),
        (":tags: [remove-cell]\n\n", "", r"cell 2 \('x \+= 1'\) has changed"),
        ("Some words.", "```{code-cell}\nx = 2\n```", "it has 5 cells; 4 are recorded"),
        ("<!-- recorded on -->", "", "0 times"),
    ],
)
def test_outputs_of_other_cells_are_an_error(outputs, recorded, before, after, said):
    assert before in TEXT
    with pytest.raises(outputs.StaleOutputsError, match=said):
        outputs.show(TEXT.replace(before, after), recorded, "page.md")


def test_words_may_change(outputs, recorded):
    assert "Other words." in outputs.show(TEXT.replace("Some words.", "Other words."), recorded, "page.md")


def test_a_cell_that_fails_is_named(outputs):
    with pytest.raises(outputs.CellError, match=r"<page.md, cell 2>: NameError: name 'y' is not defined") as caught:
        outputs.run([outputs.Cell("x = 1\n"), outputs.Cell('print("so far")\ny\n')], "page.md")
    assert "so far" in str(caught.value)


def test_a_cell_that_should_fail_and_does_not_is_an_error(outputs):
    with pytest.raises(outputs.CellError, match="cell 1>: it raises no error"):
        outputs.run([outputs.Cell("x = 1\n", frozenset({"raises-exception"}))], "page.md")


def test_a_cell_that_warns_is_refused(outputs):
    with pytest.raises(outputs.CellError, match=r"cell 1>: it wrote to stderr:\nbeware"):
        outputs.run([outputs.Cell("import sys\nprint('beware', file=sys.stderr)\n")], "page.md")


def test_a_machine_without_a_gpu_records_nothing(outputs, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(TEXT, "utf-8")
    done = subprocess.run(
        [sys.executable, str(DOCS / "record_outputs.py"), str(page)],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "recorded on a GPU" in done.stderr
    assert not outputs.outputs_beside(page).exists()
