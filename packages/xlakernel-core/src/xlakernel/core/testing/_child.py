"""Another process, in which nothing of the kernel is known: `Child` here, and what it runs there.

It has four devices on the CPU and loads what `_artifact` wrote, so the kernel's code must be found again from the
artifact alone.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

DEVICES = 4
_XLA_FLAG = f"--xla_force_host_platform_device_count={DEVICES}"


class Child:
    """A process that is started when it is first asked; leave the ``with`` block to end it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.stdin.close()  # type: ignore[union-attr]  # the end of its input ends it
            self._process.stdout.close()  # type: ignore[union-attr]
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._errors.close()
            self._process = None

    def ask(self, task: str, *values: Any) -> Any:
        """Run one of `TASKS` there and return what it returns.

        Raises:
          RuntimeError: with what it raised there, or how the process died.
        """
        if self._process is None:
            self._start()
        assert self._process is not None
        try:
            pickle.dump((task, values), self._process.stdin)  # type: ignore[arg-type]
            self._process.stdin.flush()  # type: ignore[union-attr]
            raised, answer = pickle.load(self._process.stdout)  # type: ignore[arg-type]
        except (BrokenPipeError, EOFError) as error:
            raise RuntimeError(self._death()) from error
        if raised:
            raise RuntimeError(f"in a new process: {answer}")
        return answer

    def _start(self) -> None:
        flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "XLA_FLAGS": " ".join([*flags, _XLA_FLAG]),
            **_platform(),
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import {__name__} as child; child.serve()"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self.ask("find_modules", _hidden_modules())

    def _death(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")[-2000:]
        self.__exit__()
        return f"the new process ended with exit code {code}; it said: {said}"


def _platform() -> dict[str, str]:
    """Let the new process compute on the CPU if this one does, whatever else there is."""
    import jax  # not needed in the new process before it is asked to compute

    (device,) = jax.numpy.zeros(()).devices()
    return {"JAX_PLATFORMS": "cpu"} if device.platform == "cpu" else {}


def _hidden_modules() -> dict[str, str]:
    """Return the modules that were loaded from files which sys.path does not lead to, such as pytest's test files."""
    known: dict[str, bool] = {}
    hidden = {}
    for name, module in list(sys.modules.items()):
        path, top = getattr(module, "__file__", None), name.partition(".")[0]
        if path and str(path).endswith(".py") and name != "__main__":
            if top not in known:
                with contextlib.suppress(Exception):  # odd path entries raise odd errors; then it counts as hidden
                    known[top] = importlib.machinery.PathFinder.find_spec(top) is not None
            if not known.get(top):
                hidden[name] = str(path)
    return hidden


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


# What follows runs in the new process.


def find_modules(files: Mapping[str, str]) -> None:
    """Let imports find modules by a table of their files."""
    sys.meta_path.append(_Finder(files))


def call(artifact: bytes, inputs: Sequence[Any]) -> Any:
    """Load an artifact and call it."""
    import jax
    import numpy as np

    from ._artifact import load

    return jax.tree.map(np.asarray, jax.jit(load(artifact))(*inputs))


def shard(artifact: bytes, inputs: Sequence[Any], whole: Sequence[int], explicit: bool) -> Any:
    """Load an artifact and call it on every device with a slice of the inputs; those in *whole* are not sliced."""
    import jax
    import numpy as np

    from ._artifact import load
    from ._sharding import run_sharded

    return jax.tree.map(np.asarray, run_sharded(load(artifact), inputs, whole, explicit, jax.local_devices()))


TASKS: Mapping[str, Callable[..., Any]] = {"find_modules": find_modules, "call": call, "shard": shard}


def serve() -> None:
    """Answer requests from standard input until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the user's modules print must not get between the answers
    while True:
        try:
            task, values = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = (False, TASKS[task](*values))
        except Exception as error:  # noqa: BLE001 - it is raised in the process that asked
            answer = (True, f"{type(error).__name__}: {error}")
        pickle.dump(answer, answers)
        answers.flush()
