"""What ``backend="auto"`` remembers: the files, who reads them, and what becomes of damaged ones."""

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
from xlakernel.core import AutoChoice, XLACustomKernel, auto_choices, auto_records, reset_auto_choices, tune
from xlakernel.core.auto_records import Question, describe_device, recall, remember
from xlakernel.core.errors import ArgumentError, AutoBackendWarning

X = np.ones(5, np.float32)


@pytest.fixture
def folder(auto_folder):
    return auto_folder


@pytest.fixture
def forget(monkeypatch):
    """Return a function that makes this process a new one, as far as choices go."""

    def forget():
        monkeypatch.setattr(auto_records, "_known", {})
        monkeypatch.setattr(auto_records, "_unmeasured", set())

    return forget


def question(operator="op", call="float32[8] -> float32[8]", backends=("a", "b")):
    return Question(operator, "cpu", "a CPU", call, backends)


def choice(asked, backend="b"):
    return AutoChoice(
        *(asked.operator, asked.platform, asked.device, asked.call),
        backend=backend,
        seconds=dict.fromkeys(asked.backends, 1e-5),
        problems={},
        date="2026-01-31",
        versions=auto_records.installed_versions(),
    )


def test_a_choice_is_there_in_the_next_process(folder, forget, alike, measured, speeds):
    alike(X, outs=X, backend="auto")
    (before,) = auto_choices()
    forget()
    assert auto_choices() == [before]
    alike(X, outs=X, backend="auto")
    assert measured == [alike.name]
    assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_importing_and_asking_write_nothing(folder):
    assert (auto_choices(), reset_auto_choices()) == ([], 0)
    assert not folder.exists()


GOOD = dataclasses.asdict(choice(question()))
DAMAGED = {
    "empty": b"",
    "half": json.dumps({"format": 1, **GOOD}).encode()[:100],
    "not text": b"\xff\xfe\x00",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "another format": json.dumps({"format": 2, **GOOD}).encode(),
    "no format": json.dumps(GOOD).encode(),
    "too little": b'{"format": 1}',
    "too much": json.dumps({"format": 1, **GOOD, "more": 1}).encode(),
    "another operator": json.dumps({"format": 1, **GOOD, "operator": "other"}).encode(),
    "an unknown backend": json.dumps({"format": 1, **GOOD, "backend": "z", "seconds": {"z": 1.0}}).encode(),
    "a backend that was not timed": json.dumps({"format": 1, **GOOD, "seconds": {}}).encode(),
    "no number": json.dumps({"format": 1, **GOOD, "seconds": {"b": "quick"}}).encode(),
    "not finite": json.dumps({"format": 1, **GOOD, "seconds": {"b": float("nan")}}).encode(),
    "no table": json.dumps({"format": 1, **GOOD, "problems": []}).encode(),
    "no name": json.dumps({"format": 1, **GOOD, "device": None}).encode(),
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


@pytest.mark.parametrize("content", [DAMAGED["empty"], DAMAGED["half"]])
def test_a_damaged_file_goes_when_everything_is_reset(folder, content):
    remember(question(), choice(question()))
    (path,) = folder.iterdir()
    path.write_bytes(content)
    assert auto_choices() == [choice(question())]  # this process knows it
    assert reset_auto_choices() == 1
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_once(folder, alike, measured, speeds):
    folder.parent.write_text("a file where the folder should be", "utf-8")
    with pytest.warns(AutoBackendWarning, match="cannot be kept in .*Set XLAKERNEL_CACHE_DIR"):
        alike(X, outs=X, backend="auto")
    for dtype in (np.float32, np.int32, np.int32):  # a warning would be an error
        alike(X.astype(dtype), outs=X.astype(dtype), backend="auto")
    assert measured == [alike.name] * 2
    assert len(auto_choices(alike.name)) == 2
    assert reset_auto_choices(alike.name) == 2
    assert auto_choices() == []


@pytest.mark.skipif(sys.platform == "win32", reason="modes of files are those of POSIX")
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("mode", [None, 0o755, 0o2775, 0o1777])
def test_choices_are_shared_by_those_who_share_the_cache_folder(folder, mode, mask):
    """A folder that nothing has made yet is the user's alone, whatever the umask is."""
    if mode is not None:
        folder.parent.mkdir()
        folder.parent.chmod(mode)
    before = os.umask(mask)
    try:
        remember(question(), choice(question()))
    finally:
        os.umask(before)
    expected = 0o700 if mode is None else mode
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == expected & 0o666
    assert folder.stat().st_mode & 0o7777 == folder.parent.stat().st_mode & 0o7777 == expected


@pytest.mark.skipif(sys.platform == "win32", reason="FIFOs are those of POSIX")
@pytest.mark.parametrize("planted", ["FIFO", "link", "folder", "large"])
def test_what_is_not_a_small_file_is_no_choice(folder, forget, tmp_path, planted):
    asked = question()
    remember(asked, choice(asked))
    (path,) = folder.iterdir()
    (tmp_path / "elsewhere").write_bytes(path.read_bytes())
    path.unlink()
    if planted == "FIFO":
        os.mkfifo(path)
    elif planted == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif planted == "folder":
        path.mkdir()
    else:
        os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40)
    forget()
    assert recall(asked) is None
    assert auto_choices() == []
    assert reset_auto_choices() == (planted != "folder")
    assert [found.name for found in folder.iterdir()] == [path.name] * (planted == "folder")
    assert (tmp_path / "elsewhere").exists()


def test_a_user_without_a_home(monkeypatch, folder):
    for name in ("XLAKERNEL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.warns(AutoBackendWarning, match="there is no home folder"):
        remember(question(), choice(question()))
    assert auto_choices() == [choice(question())]


def test_a_file_that_is_not_there_is_looked_for_once_by_calls_that_are_never_measured(
    new_name, folder, speeds, monkeypatch
):
    looked = []

    def read(path, known=auto_records._read):
        looked.append(path.name)
        return known(path)

    monkeypatch.setattr(auto_records, "_read", read)
    op = XLACustomKernel(new_name(), has_side_effect=True)
    for backend in "ab":
        op.def_kernel(backend, "cpu", lambda outs: lambda x: 2 * x)
    with pytest.warns(AutoBackendWarning, match="or with side effects"):
        op(X, outs=X, backend="auto")
    looked.clear()
    for _ in range(3):
        op(X, outs=X, backend="auto")
    assert looked == []
    (found,) = tune(op, X, outs=X)  # which measures it after all
    assert auto_choices(op.name) == [found]
    assert reset_auto_choices(op.name) == 1
    looked.clear()
    with pytest.warns(AutoBackendWarning):
        op(X, outs=X, backend="auto")
    assert len(looked) == 1


def test_choices_of_other_versions_are_not_used(folder, forget, monkeypatch):
    remember(question(), choice(question()))
    forget()
    now = {**auto_records.installed_versions(), "jax": "99.0"}
    monkeypatch.setattr(auto_records, "installed_versions", lambda: now)
    assert (recall(question()), auto_choices()) == (None, [])
    remember(question(), choice(question(), "a"))
    assert recall(question()).backend == "a"
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
def test_operators_are_named(function, alike):
    with pytest.raises(
        ArgumentError, match=f"{function.__name__}: operator is XLACustomKernel.*such as '{alike.name}'"
    ):
        function(alike)


@pytest.mark.parametrize("function", [auto_choices, reset_auto_choices])
def test_a_name_that_nothing_has(function, folder, forget):
    op = XLACustomKernel("convolved_never", replace=True)
    remember(question("of_a_file"), choice(question("of_a_file")))
    for _ in range(2):  # from what this process knows, and from files
        with pytest.raises(ArgumentError, match=rf"{function.__name__}: .* 'of_a_flie' .*mean 'of_a_file'"):
            function("of_a_flie")
        forget()
    with pytest.raises(ArgumentError, match=rf"mean '{op.name}'"):
        function("convolved_nevre")
    with pytest.raises(ArgumentError, match=r"operators\(\) has those that there are"):
        function("§")
    assert not function(op.name)  # it is there, and was not measured
    assert function("of_a_file")  # it was, in a process that is gone


def test_a_choice_as_text():
    found = dataclasses.replace(choice(question()), seconds={"a": 2e-3, "b": 1e-5}, problems={"c": "it fails"})
    assert str(found) == "op float32[8] -> float32[8] on cpu (a CPU): b (b 10 µs, a 2e+03 µs; not c: it fails)"


def test_a_cpu_is_told_by_its_model_and_cores():
    assert describe_device(jax.devices("cpu")[0]).endswith(f", {len(os.sched_getaffinity(0))} cores")


def test_writers_and_readers_at_once(folder, forget):
    """Whoever reads finds a whole choice, whichever of them it is."""
    asked, found = question(), []
    remember(asked, choice(asked))
    path = folder / asked.file()
    done = threading.Event()

    def write(backend):
        for _ in range(100):
            auto_records._write(path, choice(asked, backend))

    def read():
        while not done.is_set():
            found.append(auto_records._read(path))

    writers = [threading.Thread(target=write, args=(backend,)) for backend in "abab"]
    reader = threading.Thread(target=read)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert found and all(one in (choice(asked, "a"), choice(asked, "b")) for one in found)
    assert list(folder.iterdir()) == [path]


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
            auto_records._known[one] = choice(one)
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
from xlakernel.core import XLACustomKernel, auto, auto_choices, auto_race
auto_race._ROUND, auto_race._ROUNDS = 1e-5, 1
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


def test_processes_share_what_they_measured(folder, measured):
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
