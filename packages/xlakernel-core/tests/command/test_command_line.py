"""The command as users and scripts meet it: its arguments, exit statuses, JSON and text."""

import importlib.metadata
import io
import json
import os
import pty
import subprocess
import sys
import time

import pytest

from xlakernel.command import ask as asking
from xlakernel.command import command_line, doctor
from xlakernel.command.ask import ask
from xlakernel.command.facts import Facts, is_present
from xlakernel.command.findings import Finding
from xlakernel.command.text import Printer
from xlakernel.core import __version__

KEYS = ["ok", "python", "versions", "variables", "findings", "answers"]
JAX = {"version": "0.12.0", "devices": [{"platform": "cpu", "kind": "cpu", "id": 0}]}


@pytest.fixture
def facts(monkeypatch):
    """Let the doctor find what a test says."""

    def set_facts(**given):
        given = {"python": "3.12.1, Linux x86_64", "answers": {"jax": JAX}, **given}
        monkeypatch.setattr(doctor, "collect", lambda timeout: Facts(**given))

    return set_facts


@pytest.mark.parametrize(("variables", "status"), [({}, 0), ({"NUMBA_DISABLE_JIT": "1"}, 1)])
def test_the_exit_status_says_whether_there_is_a_problem(facts, capsys, variables, status):
    facts(versions={"jax": "0.12.0"}, variables=variables)
    assert command_line.main(["doctor"]) == status
    assert f"\n{status} problem" in capsys.readouterr().out
    assert command_line.main(["doctor", "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] == (status == 0)


@pytest.mark.parametrize(
    "arguments", [[], ["doctr"], ["doctor", "--jsn"], ["doctor", "--timeout", "0"], ["doctor", "--timeout", "soon"]]
)
def test_what_is_not_understood_has_a_status_of_its_own(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command_line.main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("usage: xlakernel")


def test_json_has_the_keys_that_scripts_read(facts, capsys):
    facts(versions={"jax": "0.12.0", "numpy": "2.5.0", "numba-cuda": "0.30.4"})
    command_line.main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert list(found) == KEYS
    assert {tuple(finding) for finding in found["findings"]} == {("name", "state", "text", "mend", "link", "stops")}
    names = [finding["name"] for finding in found["findings"]]
    assert len(names) == len(set(names)) and "numba-cuda-numpy" in names


@pytest.mark.parametrize("module", ["xlakernel.command", "xlakernel.core"])
def test_it_runs_as_a_module(module):
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"xlakernel-core {__version__}\n"), done.stderr


def test_it_is_installed_as_a_script():
    try:
        scripts = importlib.metadata.distribution("xlakernel-core").entry_points.select(group="console_scripts")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("xlakernel-core is imported from its sources, without an installed distribution")
    assert [(script.name, script.load()) for script in scripts] == [("xlakernel", command_line.main)]


@pytest.mark.parametrize("arguments", [["--help"], ["doctor", "--help"], ["backends", "--help"], ["bench", "--help"]])
def test_help_says_what_the_exit_status_means(arguments, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as stopped:
        command_line.main(arguments)
    said = capsys.readouterr().out
    assert stopped.value.code == 0
    assert "exit status: 0" in said
    assert "==SUPPRESS==" not in said and "None" not in said
    assert max(map(len, said.splitlines())) <= 90


def test_the_help_lists_every_command(capsys):
    with pytest.raises(SystemExit):
        command_line.main(["--help"])
    said = capsys.readouterr().out
    assert all(f"\n    {command} " in said for command in ("doctor", "backends", "bench"))


ROWS = [
    Finding("jax", "ok", "well"),
    Finding("threads", "problem", "a long story. " * 20, "pip install " + "x" * 120, "https://example.org/" + "y" * 99),
    Finding("warp", "note", "so it is", link="https://example.org/note"),
]


def test_findings_stand_in_columns_and_what_is_to_be_copied_stays_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    out = io.StringIO()
    Printer(out).findings(ROWS)
    lines = out.getvalue().splitlines()
    assert lines[0] == "  ok       jax      well"
    assert lines[-1] == "  note     warp     so it is"
    indent = " " * len("  problem  threads  ")
    assert f"{indent}mend: {ROWS[1].mend}" in lines
    assert f"{indent}see {ROWS[1].link}" in lines
    assert all(len(line) <= 70 for line in lines if "mend" not in line and "see" not in line)
    assert "\033" not in out.getvalue()


SHOW = """
from xlakernel.command.findings import Finding
from xlakernel.command.text import Printer
Printer().findings([Finding("jax", "problem", "text")])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize(
    ("variables", "colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colors_are_for_terminals_of_those_who_want_them(variables, colored):
    ours, theirs = pty.openpty()
    own = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"} | variables
    subprocess.run([sys.executable, "-c", SHOW], env=own, stdout=theirs, check=True)
    os.close(theirs)
    said = os.read(ours, 1000).decode()
    os.close(ours)
    assert ("\033[31m" in said) == colored
    assert "jax" in said


PIPED = """
import sys
from xlakernel.command import command_line, doctor
from xlakernel.command.facts import Facts
doctor.collect = lambda timeout: Facts()
sys.exit(command_line.main(["doctor"]))
"""


def test_a_pipe_that_is_closed_is_no_traceback():
    unread, pipe = os.pipe()
    os.close(unread)
    done = subprocess.run([sys.executable, "-c", PIPED], stdout=pipe, stderr=subprocess.PIPE, check=False)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.fixture
def probes(monkeypatch, tmp_path):
    """Put a file of probes in the place of ours."""

    def write(text):
        path = tmp_path / "probes.py"
        path.write_text(f"import json, os, sys, time\ndef answer(**said): print(json.dumps(said), flush=True)\n{text}")
        monkeypatch.setattr(asking, "PATH", path)

    return write


def test_what_hangs_is_given_up_and_what_it_said_before_counts(probes):
    probes("if sys.argv[1] == 'jax': answer(jax={'devices': []})\ntime.sleep(60)")
    begin = time.monotonic()
    answers = ask(["jax", "core", "warp"], timeout=1.0)
    assert time.monotonic() - begin < 20
    assert answers["jax"] == {"devices": []}
    assert answers["core"] == answers["warp"]
    assert answers["core"] == {"error": "its process gave no answer within 1 s (--timeout lets it take longer)"}


def test_the_files_of_the_command_are_no_modules_of_the_libraries(probes):
    probes("answer(warp=sys.path, driver=os.path.dirname(__file__))")
    answers = ask(["warp"], timeout=60)
    assert answers["driver"] not in answers["warp"]


@pytest.mark.parametrize(("hidden", "present"), [("json", False), ("nothing", True)])
def test_what_an_import_hook_hides_is_not_there(monkeypatch, hidden, present):
    class Hook:
        def find_spec(self, name, path=None, target=None):
            if name == hidden:
                raise ModuleNotFoundError(name)

    monkeypatch.setattr(sys, "meta_path", [Hook(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "json")
    assert is_present("json") == present
    assert not is_present("no_such_module")


def test_libraries_are_asked_at_the_same_time(probes):
    probes("begin = time.time()\ntime.sleep(2)\nfor name in sys.argv[1:]: answer(**{name: [begin, time.time()]})")
    answers = ask(["jax", "numba", "warp", "driver"], timeout=60)
    assert max(begin for begin, _ in answers.values()) < min(end for _, end in answers.values())


def test_the_end_of_a_process_is_told_with_its_last_words(probes):
    probes("sys.stderr.write('why\\n')\nsys.exit(3)")
    answers = ask(["numba", "numba_cuda"], timeout=60)
    assert answers["numba"]["error"] == "its process ended with exit status 3; its last words: why"
    assert answers["numba_cuda"]["error"] == "not asked, as numba failed"
