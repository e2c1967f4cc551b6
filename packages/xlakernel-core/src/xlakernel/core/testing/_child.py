"""New Python processes with devices on the CPU: `environment`, and a worker that answers calls, `Child`."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

DEVICES = 4


def environment(devices: int) -> dict[str, str]:
    """Return the environment of a process that imports what this one can and has *devices* devices on the CPU."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "XLA_FLAGS": " ".join([*flags, f"--xla_force_host_platform_device_count={devices}"]),
    }


class Child:
    """A process in which nothing is loaded; the first `ask` starts it, leaving the ``with`` block ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._errors.close()
            self._process = None

    def ask(self, function: Callable[..., Any], *values: Any) -> Any:
        """Call a module's *function* there and return what it returns.

        Raises:
          RuntimeError: with what it raised there, or how the process died.
        """
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            pickle.dump((function, values), process.stdin)
            process.stdin.flush()
            raised, answer = pickle.load(process.stdout)
        except (BrokenPipeError, EOFError) as error:
            code = process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")[-2000:]
            self.__exit__()
            raise RuntimeError(f"the new process ended with exit code {code}; it said: {said}") from error
        if raised:
            raise RuntimeError(f"in a new process: {answer}")
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import {__name__} as child; child.serve()"],
            env={**environment(DEVICES), **_platform()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        modules = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
        files = {name: str(path) for name, path in modules.items() if str(path).endswith(".py") and name != "__main__"}
        self.ask(find_modules, files)
        return self._process


def _platform() -> dict[str, str]:
    """Let the new process compute on the CPU if this one does, also where there is a GPU."""
    import jax  # not before the new process is asked to compute

    (device,) = jax.numpy.zeros(()).devices()
    return {"JAX_PLATFORMS": "cpu"} if device.platform == "cpu" else {}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules by name in a table of files, and packages that only hold such."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name in self.files:
            return importlib.util.spec_from_file_location(name, self.files[name])
        if any(known.startswith(f"{name}.") for known in self.files):
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        return None


# The functions below run in the new process.


def find_modules(files: Mapping[str, str]) -> None:
    """Let imports find what sys.path does not lead to, such as pytest's test files, by a table of files."""
    sys.meta_path.append(_Finder(files))


def serve() -> None:
    """Answer calls from standard input until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's modules print must not get between the answers
    while True:
        try:
            function, values = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = (False, function(*values))
        except Exception as error:  # noqa: BLE001 - raised again in the process that asked
            answer = (True, f"{type(error).__name__}: {error}")
        pickle.dump(answer, answers)
        answers.flush()
