"""Choices of ``backend="auto"`` in the process and on disk, and files that are refused."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

import xlakernel
from xlakernel.core import AutoChoice, XLACustomKernel, auto_choices, reset_auto_choices, tune
from xlakernel.core.errors import ArgumentError, AutoBackendWarning
from xlakernel.core.measure import choices
from xlakernel.core.measure.choices import Question, recall, remember
from xlakernel.core.measure.descriptions import describe_device, installed_versions

X = np.ones(5, np.float32)


@pytest.fixture
def folder(auto_folder):
    return auto_folder


@pytest.fixture
def forget(monkeypatch):
    """Return a function that clears the choices of this process."""
    return lambda: monkeypatch.setattr(choices, "_known", {})


def question(operator="op", call="float32[8] -> float32[8]"):
    return Question(operator, "cpu", "a CPU", call, ("a", "b"))


def choice(asked, backend="b"):
    return AutoChoice(
        *(asked.operator, asked.platform, asked.device, asked.call),
        backend=backend,
        seconds=dict.fromkeys(asked.backends, 1e-5),
        problems={},
        date="2026-01-31",
        versions=installed_versions(),
    )


def test_a_choice_is_there_in_the_next_process(folder, forget, alike, measured, speeds):
    alike(X, outs=X, backend="auto")
    (before,) = auto_choices()
    forget()
    assert auto_choices() == [before]
    alike(X, outs=X, backend="auto")
    assert measured == [alike.name]
    (path,) = folder.iterdir()
    assert (path.suffix, path.stat().st_mode & 0o777) == (".json", 0o600)


def test_importing_and_listing_write_nothing(folder):
    assert (auto_choices(), reset_auto_choices()) == ([], 0)
    assert not folder.exists()


GOOD = dataclasses.asdict(choice(question()))
DAMAGED = {
    "empty": b"",
    "half": json.dumps(GOOD).encode()[:100],
    "not text": b"\xff\xfe\x00",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "too little": b'{"operator": "op"}',
    "too much": json.dumps({**GOOD, "more": 1}).encode(),
    "another operator": json.dumps({**GOOD, "operator": "other"}).encode(),
    "an unknown backend": json.dumps({**GOOD, "backend": "z", "seconds": {"z": 1.0}}).encode(),
    "a backend that was not timed": json.dumps({**GOOD, "seconds": {}}).encode(),
    "no number": json.dumps({**GOOD, "seconds": {"a": 1.0, "b": "quick"}}).encode(),
    "too large a number": json.dumps({**GOOD, "seconds": {"a": 10**400, "b": 1.0}}).encode(),
    "no name": json.dumps({**GOOD, "operator": None}).encode(),
    "a name of another type": json.dumps({**GOOD, "platform": 3}).encode(),
    "no table": json.dumps({**GOOD, "problems": []}).encode(),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_counts_for_nothing_and_is_replaced(folder, forget, content):
    asked = question()
    remember(asked, choice(asked))
    (path,) = folder.iterdir()
    path.write_bytes(content)
    forget()
    assert recall(asked) is None
    auto_choices()  # which may list a file of another operator's
    remember(asked, choice(asked))
    forget()
    assert recall(asked) == choice(asked)
    assert list(folder.iterdir()) == [path]


def test_a_damaged_file_goes_when_everything_is_reset(folder):
    remember(question(), choice(question()))
    (path,) = folder.iterdir()
    path.write_bytes(DAMAGED["half"])
    assert auto_choices() == [choice(question())]  # from the memory of this process
    assert reset_auto_choices() == 1
    assert list(folder.iterdir()) == []


def test_a_file_of_another_user_is_no_choice(folder, forget):
    remember(question(), choice(question()))
    (path,) = folder.iterdir()
    path.chmod(0o666)
    forget()
    assert (recall(question()), auto_choices()) == (None, [])


def test_an_unwritable_folder_is_one_warning(folder, alike, measured, speeds):
    folder.parent.write_text("a file where the folder should be", "utf-8")
    with pytest.warns(AutoBackendWarning, match="cannot be kept in .*Set XLAKERNEL_CACHE_DIR"):
        alike(X, outs=X, backend="auto")
    for dtype in (np.float32, np.int32, np.int32):  # a warning would be an error
        alike(X.astype(dtype), outs=X.astype(dtype), backend="auto")
    assert measured == [alike.name] * 2
    assert len(auto_choices(alike.name)) == 2
    assert reset_auto_choices(alike.name) == 2
    assert auto_choices() == []


def test_a_user_without_a_home(monkeypatch, folder):
    for name in ("XLAKERNEL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.warns(AutoBackendWarning, match="there is no home folder"):
        remember(question(), choice(question()))
    assert auto_choices() == [choice(question())]


def test_the_file_of_a_question_is_read_once(new_name, folder, speeds, monkeypatch):
    read = []

    def read_file(path, known=choices.read_file):
        read.append(path.name)
        return known(path)

    monkeypatch.setattr(choices, "read_file", read_file)
    op = XLACustomKernel(new_name(), has_side_effect=True)
    for backend in "ab":
        op.def_kernel(backend, "cpu", lambda outs: lambda x: 2 * x)
    with pytest.warns(AutoBackendWarning, match="or with side effects"):
        op(X, outs=X, backend="auto")
    for _ in range(3):
        op(X, outs=X, backend="auto")
    assert len(read) == 1
    (found,) = tune(op, X, outs=X)  # which measures it after all
    assert auto_choices(op.name) == [found]
    assert reset_auto_choices(op.name) == 1
    read.clear()
    with pytest.warns(AutoBackendWarning):
        op(X, outs=X, backend="auto")
    assert len(read) == 1


def test_choices_of_other_versions_are_not_used(folder, forget, monkeypatch):
    remember(question(), choice(question()))
    forget()
    now = {**installed_versions(), "jax": "99.0"}
    monkeypatch.setattr(choices, "installed_versions", lambda: now)
    assert (recall(question()), auto_choices()) == (None, [])
    remember(question(), dataclasses.replace(choice(question(), "a"), versions=now))
    assert [found.backend for found in auto_choices()] == ["a"]
    assert reset_auto_choices() == 2


def test_choices_of_one_operator(folder, forget):
    asked = [question(name, call) for name in ("op", "op 1", "op-1", "ö") for call in ("float32[4]", "float32[8]")]
    for one in asked:
        remember(one, choice(one))
    for _ in range(2):
        assert [(c.operator, c.call) for c in auto_choices("op")] == [("op", "float32[4]"), ("op", "float32[8]")]
        assert len(auto_choices("op-1")) == len(auto_choices("ö")) == 2
        assert len(auto_choices()) == 8
        forget()
    assert reset_auto_choices("op 1") == 2
    assert {found.operator for found in auto_choices()} == {"op", "op-1", "ö"}
    assert reset_auto_choices() == 6
    assert auto_choices() == []


@pytest.mark.parametrize("function", [auto_choices, reset_auto_choices])
def test_operators_are_given_by_name(function, alike):
    with pytest.raises(
        ArgumentError, match=f"{function.__name__}: operator is XLACustomKernel.*such as '{alike.name}'"
    ):
        function(alike)
    assert not function("no operator of this name")


def test_a_choice_as_text():
    found = dataclasses.replace(choice(question()), seconds={"a": 2e-3, "b": 1e-5}, problems={"c": "it fails"})
    assert str(found) == "op float32[8] -> float32[8] on cpu (a CPU): b (b 10 µs, a 2e+03 µs; not c: it fails)"


def test_a_cpu_is_described_by_its_model_and_cores():
    assert describe_device(jax.devices("cpu")[0]).endswith(f", {len(os.sched_getaffinity(0))} cores")


def test_threads_may_ask_list_and_reset_at_once(folder, forget):
    asked = [question(call=f"float32[{i}]") for i in range(100)]
    errors, done, interval = [], threading.Event(), sys.getswitchinterval()

    def repeat(step):
        try:
            while not done.is_set():
                step()
        except Exception as error:  # noqa: BLE001  # whatever it is, the test's own thread asserts
            errors.append(error)

    def learn_and_ask():
        for one in asked:
            choices._known[one] = choice(one)
            recall(one)

    steps = (learn_and_ask, learn_and_ask, auto_choices, reset_auto_choices, reset_auto_choices)
    threads = [threading.Thread(target=repeat, args=(step,)) for step in steps]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        done.wait(0.5)
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert errors == []


_PROCESS = """
import sys
import jax, numpy as np
from xlakernel.core import XLACustomKernel, auto_choices
from xlakernel.core.measure import auto, race
auto._PACE = race.Pace(rounds=1, seconds=1e-5)
measured = []
def measure(op, *args, known=auto._measure):
    measured.append(op.name)
    return known(op, *args)
auto._measure = measure
op = XLACustomKernel("of_a_process")
op.def_kernel("a", "cpu", lambda outs: lambda x: 2 * x)
op.def_kernel("b", "cpu", lambda outs: lambda x: x + x)
x = np.ones(5, np.float32)
sys.stdin.readline()
for _ in range(2):
    assert op(x, outs=x, backend="auto")[0] == 2
print(len(measured), auto_choices()[0].backend)
"""


@pytest.mark.process
def test_processes_share_choices(folder, measured):
    sources = os.pathsep.join(str(Path(path).parent) for path in xlakernel.__path__)
    environment = {**os.environ, "PYTHONPATH": sources, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", _PROCESS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

    with (
        subprocess.Popen(command, env=environment, **pipes) as one,
        subprocess.Popen(command, env=environment, **pipes) as other,
    ):
        for process in (one, other):  # at the same time
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate("")[0].split() for process in (one, other)]
    assert all(times in ("0", "1") for times, _ in said)
    (path,) = folder.iterdir()
    assert json.loads(path.read_text("utf-8"))["backend"] in [backend for _, backend in said]
    op = XLACustomKernel("of_a_process", replace=True)
    for backend in "ab":
        op.def_kernel(backend, "cpu", lambda outs: lambda x: 2 * x)
    op(X, outs=X, backend="auto")
    assert measured == []


def test_a_folder_among_the_files_stays(folder):
    remember(question(), choice(question()))
    (folder / "a.json").mkdir()
    assert reset_auto_choices() == 1
    assert list(folder.iterdir()) == [folder / "a.json"]
