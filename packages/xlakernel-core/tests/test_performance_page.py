"""What the documentation and the README say of speed is what the benchmarks measured."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"

pytestmark = pytest.mark.skipif(
    not (DOCS / "measurements.py").exists(), reason="the documentation is not beside the package here"
)


def load(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def measurements():
    yield load("measurements")
    del sys.modules["measurements"]


@pytest.fixture(scope="module")
def readme_numbers(measurements):
    yield load("readme_numbers")
    del sys.modules["readme_numbers"]


@pytest.fixture
def measured(measurements, tmp_path):
    """Return a function that writes what a suite measured, and all that is there."""

    def write(name, value=1.303, limit=1.3, holds=False, gpu=None):
        machine = {
            "processor": "Some CPU",
            "cores": 2,
            "system": "Linux x86_64",
            "python": "3.12.1",
            "versions": {"jax": "0.12.0"},
            "date": "2026-11-20",
        } | ({"gpu": gpu} if gpu else {})
        content = {
            "machine": machine,
            "microseconds": {"a | part": {"ours": {"min": 1.0, "median": 0.123456, "max": 12345.6}}},
            "marks": [{"name": "ours over theirs", "value": value, "limit": limit, "unit": "x", "holds": holds}],
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(content), "utf-8")
        return measurements.read(tmp_path)

    return write


PAGE = Path("performance.md")


def test_a_missed_target_is_in_the_table_of_its_suite_and_in_the_list(measurements, measured):
    results = measured("one-some-cpu-2cores-py3.12")
    text = "<!-- results: overview -->\n<!-- results: losses -->\n<!-- results: one -->\n"
    shown = measurements.show(text, results, Path(results[0].path.parent / "performance.md"))
    assert "| one | 0 of 1 | 2026-11-20 | Some CPU, 2 cores, Python 3.12 |" in shown
    assert "| ours over theirs | 1.303 × | 1.3 × | one | Some CPU, 2 cores, Python 3.12 |" in shown
    section = shown[shown.index("### ") :]
    assert "| ours over theirs | 1.303 × | 1.3 × | **missed** |" in section
    assert r"| a \| part | ours | 0.1235 | 1 | 12346 |" in section
    assert "Measured on 2026-11-20: Linux x86_64, Python 3.12.1, jax 0.12.0." in section
    assert "{download}`one-some-cpu-2cores-py3.12.json <one-some-cpu-2cores-py3.12.json>`" in section


def test_a_chart_is_shown_if_there_is_one(measurements, measured):
    results = measured("one-some-cpu-2cores-py3.12", value=1.0, holds=True)
    page = results[0].path.parent / "docs" / "performance.md"
    text = "<!-- results: one -->\n<!-- results: losses -->"
    assert "](../one" not in measurements.show(text, results, page)
    results[0].path.with_suffix(".png").write_bytes(b"")
    shown = measurements.show(text, results, page)
    assert "](../one-some-cpu-2cores-py3.12.png)" in shown
    assert "All targets are reached" in shown and "missed" not in shown


def test_what_was_measured_on_a_gpu_is_told_by_the_gpu(measured):
    gpu = {"name": "NVIDIA H200", "count": 4, "driver": "580.1"}
    measured("one-some-cpu-2cores-py3.12", gpu=gpu)  # the CPU of a machine that has a GPU too
    results = measured("one-4-nvidia-h200-py3.12", gpu=gpu)
    assert [result.hardware for result in results] == ["4 × NVIDIA H200, driver 580.1", "Some CPU, 2 cores"]


def test_a_target_without_a_measurement_is_missed(measurements, measured):
    results = measured("one-some-cpu-2cores-py3.12", value=None)
    assert "| not measured | 1.3 × | **missed** |" in measurements.show("<!-- results: one -->", results, PAGE)


def test_other_tables_are_shown_and_times_only_if_there_are_some(measurements, measured):
    [result] = measured("one-some-cpu-2cores-py3.12")
    content = json.loads(result.path.read_text("utf-8"))
    content |= {
        "microseconds": {},
        "tables": {"population": {"23E": {"rate": "0.4"}, "6I": {"rate": "7", "CV": "0.6"}}},
    }
    result.path.write_text(json.dumps(content), "utf-8")
    shown = measurements.show("<!-- results: one -->", measurements.read(result.path.parent), PAGE)
    assert "| population | rate | CV |\n| --- | --- | --- |\n| 23E | 0.4 |  |\n| 6I | 7 | 0.6 |" in shown
    assert "All times" not in shown


@pytest.mark.parametrize("text", ["nothing", "<!-- results: one -->\n<!-- results: two -->"])
def test_every_suite_has_a_place_and_every_place_a_suite(measurements, measured, text):
    with pytest.raises(measurements.ResultsError, match=r"\['(one|two)'\]"):
        measurements.show(text, measured("one-some-cpu-2cores-py3.12"), PAGE)


def test_the_page_has_all_that_was_measured(measurements):
    results = measurements.read()
    page = DOCS / "performance.md"
    shown = measurements.show(page.read_text("utf-8"), results, page)
    assert all(result.path.name in shown for result in results)
    assert shown.count("**missed**") == sum(len(result.lost) for result in results)
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")}
    assert all(f"nox -s bench -- {script}" in shown for script in scripts)


def test_the_readme_has_the_numbers_that_were_measured(readme_numbers):
    readme_numbers.check()


def test_a_number_that_was_not_measured_is_found(readme_numbers, measurements, tmp_path):
    readme = tmp_path / "README.md"
    text = (ROOT / "README.md").read_text("utf-8")
    cell = readme_numbers._cell(readme_numbers.calls(readme_numbers.files())["brainevent"][0])
    assert text.count(f"| {cell} |") == 1
    readme.write_text(text.replace(f"| {cell} |", f"| {cell}1 |"), "utf-8")
    with pytest.raises(measurements.ResultsError, match=r"python docs/readme_numbers\.py"):
        readme_numbers.check(readme)
    readme.write_text(text.replace("<!-- numbers end -->", ""), "utf-8")
    with pytest.raises(measurements.ResultsError, match="one place for numbers"):
        readme_numbers.check(readme)


def test_a_chart_of_other_numbers_is_found(readme_numbers, measurements, tmp_path):
    pytest.importorskip("matplotlib")
    chart, costs = tmp_path / "chart.svg", readme_numbers.calls(readme_numbers.files())
    readme_numbers.draw(costs, chart)
    readme_numbers.check(chart=chart)
    assert chart.stat().st_size < 100_000
    readme_numbers.draw({**costs, "brainevent": [1.0, 2.0, 3.0]}, chart)
    with pytest.raises(measurements.ResultsError, match=r"chart\.svg: it shows other numbers"):
        readme_numbers.check(chart=chart)


def test_a_file_that_went_away_is_named(readme_numbers, measurements):
    with pytest.raises(measurements.ResultsError, match=r"call_overhead-.*\.json, and there is none"):
        readme_numbers.numbers({})
