"""Check of `xlakernel.core.export`: an artifact is loaded in a new process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import MissingDependencyError
from ..measure.comparison import CheckFailure, compare
from ..programs.export import deserialize, export
from ._processes import environment
from ._report import NotTried
from ._subject import Subject

# Seconds within which the new process must answer.
_TIME_LIMIT = 300
# Exit status of a fork that has written its answer; other statuses come from the user's modules.
_ANSWERED = 86

_lock = threading.Lock()


def check_export(subject: Subject) -> str:
    """The results are the same in a process that has only the artifact."""
    if not hasattr(os, "fork"):
        raise NotTried("this operating system has no fork; check the kernel on Linux or macOS")
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in subject.inputs]
    try:
        artifact = export(jax.jit(subject.function))(*structs).serialize()
    except MissingDependencyError as error:  # its message has the installation command
        raise NotTried(str(error)) from error
    compare(_run_elsewhere(artifact, subject.inputs), subject.expected(), subject.tolerance)
    return "loaded in a new process"


def _run_elsewhere(artifact: bytes, inputs: Sequence[Any]) -> Any:
    """Run an artifact in a new process, a fork of a server that has imported JAX but not the kernel."""
    modules = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    files = {name: str(path) for name, path in modules.items() if str(path).endswith(".py") and name != "__main__"}
    platform = next(iter(jax.numpy.zeros(()).devices())).platform
    # JAX adds the settings to the class at run time.
    settings: dict[str, Any] = {"jax_enable_x64": jax.config.jax_enable_x64}  # type: ignore[attr-defined]
    if platform == "cpu":
        settings["jax_platforms"] = "cpu"
    failure, results = _answer((artifact, inputs, settings, files))
    if failure:
        raise CheckFailure(f"in a new process: {failure}")
    return results


def _answer(request: Any) -> tuple[str, Any]:
    """Return the server's answer to a request; stop a server that does not answer."""
    with _lock:  # one request at a time
        server = _server()
        if server.poll() is not None:  # it has ended, for example for lack of memory
            _end(server)
            server = _server()
        assert server.stdin is not None and server.stdout is not None
        is_late = threading.Event()
        # A timeout of `select` would not do: sending the request may block, and an answer may be incomplete.
        timer = threading.Timer(_TIME_LIMIT, _kill, [server, is_late])
        timer.start()
        try:
            pickle.dump(request, server.stdin)
            server.stdin.flush()
            answer: tuple[str, Any] = pickle.load(server.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            _end(server)
            late, early = f"it did not answer within {_TIME_LIMIT} s", "it ended without an answer"
            return late if is_late.is_set() else early, None
        except BaseException:  # a late answer would be taken for the answer to the next request
            _end(server)
            raise
        finally:
            timer.cancel()
            timer.join()
        return answer


@functools.cache
def _server() -> subprocess.Popen[bytes]:
    """Start the server once; it ends with this process."""
    server = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import serve; serve()"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(_stop, server)
    return server


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server and its fork; the next request starts another server."""
    _server.cache_clear()
    _kill(server, threading.Event())
    atexit.unregister(_stop)
    _stop(server)


def _kill(server: subprocess.Popen[bytes], done: threading.Event) -> None:
    done.set()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Let the server read the end of its input, wait for its end, and close its pipes."""
    with contextlib.suppress(OSError):  # raised if the server was killed
        server.communicate()


# The rest runs in the server and its forks.


class _Finder(importlib.abc.MetaPathFinder):
    """Finder of modules that are not on `sys.path`, such as pytest's test files, by a table of files."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name in self.files:
            return importlib.util.spec_from_file_location(name, self.files[name])
        if any(known.startswith(f"{name}.") for known in self.files):
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        return None


def serve() -> None:
    """Fork for each request on standard input. The output is the fork's result or, if it has none, its exit status."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps output of the user's modules out of the answers
    while True:
        try:
            artifact, inputs, settings, files = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if not (fork := os.fork()):
            sys.meta_path.append(_Finder(files))
            pickle.dump(_run(artifact, inputs, settings), answers)
            answers.flush()
            os._exit(_ANSWERED)
        status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        if status != _ANSWERED:
            pickle.dump((f"it ended with exit status {status}", None), answers)
            answers.flush()


def _run(artifact: bytes, inputs: Sequence[Any], settings: Mapping[str, Any]) -> tuple[str, Any]:
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        return "", jax.tree.map(np.asarray, jax.jit(deserialize(artifact).call)(*inputs))
    except Exception as error:  # noqa: BLE001 - reported by the process that sent the request
        return f"{type(error).__name__}: {error}", None
