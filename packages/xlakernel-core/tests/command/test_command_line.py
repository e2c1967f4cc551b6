"""Arguments, exit statuses, JSON and text of the command."""

import importlib.metadata
import json
import os
import subprocess
import sys
import time

import pytest

from xlakernel.command import command_line, doctor, probes
from xlakernel.command.facts import Facts
from xlakernel.command.findings import Finding
from xlakernel.command.probes import ask

KEYS = ["ok", "python", "versions", "variables", "answers", "findings"]
JAX = {"devices": [{"platform": "cpu", "kind": "cpu"}]}


@pytest.fixture
def facts(monkeypatch):
    """Return a function that sets the facts that the doctor examines."""

    def set_facts(**given):
        given = {"python": "3.12.1, Linux x86_64", "answers": {"jax": JAX}, **given}
        monkeypatch.setattr(doctor, "collect", lambda timeout: Facts(**given))

    return set_facts


@pytest.mark.parametrize(("numpy", "status"), [("2.4.0", 0), ("2.5.0", 1)])
def test_the_exit_status_is_1_if_there_is_a_problem(facts, capsys, numpy, status):
    facts(versions={"jax": "0.12.0", "numpy": numpy, "numba-cuda": "0.30.4"})
    assert command_line.main(["doctor"]) == status
    assert f"\nproblems: {status}" in capsys.readouterr().out
    assert command_line.main(["doctor", "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert list(found) == KEYS and found["ok"] == (status == 0)
    assert {tuple(finding) for finding in found["findings"]} == {("name", "state", "text", "fix", "link", "stops")}
    names = [finding["name"] for finding in found["findings"]]
    assert len(names) == len(set(names)) and ("numba-cuda-numpy" in names) == bool(status)


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            [],
            ["doctr"],
            ["doctor", "--jsn"],
            *(["doctor", "--timeout", limit] for limit in ("soon", "nan", "inf", "0")),
        ),
        *(
            ["demo", option, value]
            for option in ("--neurons", "--seconds", "--seed")
            for value in ("many", "nan", "-1")
        ),
        *(["demo", "--neurons", value] for value in ("99", "20001", "1e3", "9" * 5000)),
    ],
    ids=lambda words: " ".join(words)[:30],
)
def test_the_exit_status_of_invalid_arguments_is_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command_line.main(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("usage: xlakernel")
    if "--timeout" in arguments:
        assert f"--timeout: {arguments[-1]!r} is not a number from 0.001 to 86400" in printed
    if "--neurons" in arguments:
        assert f"--neurons: {arguments[-1]!r} is not a whole number from 100 to 20000" in printed


def test_it_runs_as_a_module(run):
    try:
        version = importlib.metadata.version("xlakernel-core")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"xlakernel-core {version}\n"), done.stderr


def test_it_is_installed_as_a_script():
    try:
        scripts = importlib.metadata.distribution("xlakernel-core").entry_points.select(group="console_scripts")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("xlakernel-core is imported from its sources, without an installed distribution")
    assert [(script.name, script.load()) for script in scripts] == [("xlakernel", command_line.main)]


def test_help_lists_commands_and_exit_statuses(capsys):
    with pytest.raises(SystemExit) as stopped:
        command_line.main(["--help"])
    said = capsys.readouterr().out
    assert stopped.value.code == 0
    assert "exit status: 0" in said
    assert all(f"\n    {name} " in said for name in ("doctor", "backends", "bench", "auto"))


ROWS = [
    Finding("jax", "ok", "well"),
    Finding("warp", "problem", "a long story. " * 20, "pip install " + "x" * 120, "https://example.org/" + "y" * 99),
    Finding("driver", "note", "so it is", link="https://example.org/note"),
]


def test_findings_are_in_columns_with_unbroken_commands(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "70")
    doctor._show_findings(ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  ok       jax     well"
    assert lines[-1] == "  note     driver  so it is"
    indent = " " * len("  problem  driver  ")
    assert f"{indent}fix: {ROWS[1].fix}" in lines
    assert f"{indent}see {ROWS[1].link}" in lines
    assert all(len(line) <= 70 for line in lines if "fix: " not in line and "see " not in line)


PIPED = """
import sys
from xlakernel.command import command_line, doctor
from xlakernel.command.facts import Facts
doctor.collect = lambda timeout: Facts()
sys.exit(command_line.main(["doctor"]))
"""


def test_a_closed_pipe_is_no_traceback():
    unread, pipe = os.pipe()
    os.close(unread)
    done = subprocess.run([sys.executable, "-c", PIPED], stdout=pipe, stderr=subprocess.PIPE, check=False)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_closed_stdout_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "collect", lambda timeout: Facts())
    monkeypatch.setattr(sys, "stdout", None)
    assert command_line.main(["doctor"]) == 1
    assert capsys.readouterr().err == "xlakernel: stdout is closed\n"


@pytest.fixture
def write_probes(monkeypatch, tmp_path):
    """Return a function that replaces the file of probes."""

    def write(text):
        path = tmp_path / "probes.py"
        path.write_text(f"import json, os, sys, time\ndef answer(**said): print(json.dumps(said), flush=True)\n{text}")
        monkeypatch.setattr(probes, "__file__", str(path))

    return write


def test_a_library_that_hangs_is_ended(write_probes):
    write_probes("time.sleep(60)")
    begin = time.monotonic()
    answers = ask(["jax", "warp"], timeout=1.0)
    assert time.monotonic() - begin < 20
    assert answers["jax"] == answers["warp"]
    assert answers["jax"] == {"error": "its process gave no answer within 1 s (--timeout lets it take longer)"}


def test_probes_run_at_the_same_time_without_the_files_of_the_command_on_the_path(write_probes):
    write_probes("begin = time.time()\ntime.sleep(2)\nanswer(time=[begin, time.time()], path=sys.path)")
    answers = ask(["jax", "core", "numba", "numba_cuda", "warp", "driver"], timeout=60)
    times = [answer["time"] for answer in answers.values()]
    assert max(begin for begin, _ in times) < min(end for _, end in times)
    assert os.path.dirname(probes.__file__) not in answers["warp"]["path"]


@pytest.mark.parametrize(
    ("end", "status"),
    [("sys.exit(3)", "exit status 3"), ("os.kill(os.getpid(), 11)", "Segmentation fault")],
)
def test_the_end_of_a_process_is_reported_with_its_last_line(write_probes, end, status):
    write_probes(f"sys.stderr.write('more\\nwhy\\n'); sys.stderr.flush()\n{end}")
    assert ask(["numba"], timeout=60)["numba"]["error"] == f"its process ended with {status}; its last line: why"


def test_messages_of_a_library_are_kept(write_probes):
    write_probes("sys.stderr.write('no GPU\\n')\nanswer(devices=[])")
    assert ask(["jax"], timeout=60) == {"jax": {"devices": [], "message": "no GPU"}}


def test_an_error_without_a_text_names_its_line():
    with pytest.raises(LookupError) as raised:
        raise LookupError
    assert probes._one_line(raised.value).startswith(f"LookupError: raise LookupError ({__file__}:")


def test_characters_that_stdout_cannot_encode_are_escaped(run):
    done = run("doctor", PYTHONIOENCODING="ascii")
    assert r"its devices are cpu: 1 \xd7 cpu" in done.stdout, done.stderr


@pytest.mark.parametrize("command", ["auto", "backends"])
def test_a_setting_that_jax_refuses_is_no_traceback(run, command):
    done = run(command, JAX_ENABLE_X64="maybe")
    assert (done.returncode, done.stdout) == (1, "")
    assert "xlakernel.core cannot be imported: ValueError" in done.stderr and "JAX_ENABLE_X64" in done.stderr
    assert "Traceback" not in done.stderr


def test_control_characters_are_escaped(facts, capsys):
    facts(
        versions={"jax": "0.12.0\x1b[2J"},
        variables={"JAX_PLATFORMS": "cpu\x1b]0;title\x07\x7f"},
        answers={"jax": {"error": "broken\x9b1m"}},
    )
    assert command_line.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.split("\n"))
    assert all(text in out for text in (r"0.12.0\x1b[2J", r"cpu\x1b]0;title\x07\x7f", r"broken\x9b1m"))
    assert command_line.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["variables"] == {"JAX_PLATFORMS": "cpu\x1b]0;title\x07\x7f"}


def test_the_demo_needs_another_package(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert command_line.main(["demo"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("xlakernel: the demo needs xlakernel-sparse, which is not installed: pip install ")
