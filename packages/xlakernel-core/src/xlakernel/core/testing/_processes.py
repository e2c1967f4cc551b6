"""A program in several processes that JAX joins into one."""

from __future__ import annotations

import math
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import jax

from ..errors import ArgumentError, KernelCheckError
from ._child import environment

_GRACE = 3.0  # seconds for the others to fail and report too, once a process failed: most wait for it for ever


def run_in_processes(program: str, *, processes: int = 2, devices: int = 2, timeout: float = 180.0) -> list[str]:
    """Run a program in several processes of this machine, which JAX joins into one, with devices on the CPU.

    It is for tests of what is spread over machines: in the program, ``jax.devices()`` are those of all processes, and
    their collectives go through gloo. None of these processes outlives the call.

    Args:
      program: the text of a Python program. Each process runs all of it, after ``jax.distributed.initialize``.
      processes: how many there are.
      devices: how many each of them has.
      timeout: seconds that they may take, together.

    Returns:
      What each process printed, stdout and stderr as one.

    Raises:
      KernelCheckError: if a process fails, or the time is over; the message has what each of them printed.
      ArgumentError: if *processes* or *devices* is not an integer from 1 on, or *timeout* not a number above 0.

    Example:
      >>> from xlakernel.core.testing import run_in_processes
      >>> said = run_in_processes("import jax; print(jax.device_count(), 'devices')", processes=1)
      >>> "2 devices" in said[0]
      True
    """
    for name, number in (("processes", processes), ("devices", devices)):
        if not isinstance(number, int) or number < 1:
            raise ArgumentError(f"run_in_processes: {name} is {number!r}; expected an integer from 1 on.")
    if not isinstance(timeout, (int, float)) or not timeout > 0 or math.isinf(timeout):
        raise ArgumentError(f"run_in_processes: timeout is {timeout!r}; expected a number of seconds above 0.")
    end = time.monotonic() + timeout
    with tempfile.TemporaryDirectory() as folder:
        met = Path(folder, "met")
        codes, texts = _run(program, processes, devices, end, met)
        # Another process may have taken the port in between, which each release of JAX reports otherwise, or dies of.
        if any(codes) and not met.exists() and time.monotonic() < end:
            codes, texts = _run(program, processes, devices, end, met)
    if any(codes):
        said = "\n".join(f"process {i}, exit code {codes[i]}:\n{text}" for i, text in enumerate(texts))
        raise KernelCheckError(f"run_in_processes: a process failed, or took more than {timeout:g} s.\n{said}")
    return texts


def _run(program: str, processes: int, devices: int, end: float, met: Path) -> tuple[list[int], list[str]]:
    path = met.with_name("program.py")
    path.write_text(program, "utf-8")
    address = f"127.0.0.1:{_free_port()}"
    env = {**environment(devices), "JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "utf-8"}
    texts = [met.with_name(f"{i}.txt") for i in range(processes)]  # a pipe that is not read would fill up
    running: list[subprocess.Popen[bytes]] = []
    try:
        for i, text in enumerate(texts):
            call = f"from {__name__} import join; join({address!r}, {processes}, {i}, {str(met)!r}, {str(path)!r})"
            with text.open("w") as file:
                command = [sys.executable, "-c", call]
                running.append(subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT))
        _wait(running, end)
    finally:
        for process in running:
            process.kill()
            process.wait()
    codes = [process.returncode for process in running]
    return codes, [text.read_text("utf-8", "backslashreplace") for text in texts]


def _wait(running: Sequence[subprocess.Popen[bytes]], end: float) -> None:
    has_failed = False
    while time.monotonic() < end:
        codes = [process.poll() for process in running]
        if None not in codes:
            return
        if any(codes) and not has_failed:
            has_failed = True
            end = min(end, time.monotonic() + _GRACE)
        time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def join(address: str, processes: int, number: int, met: str, program: str) -> None:
    """Join the other processes, make the file *met*, and run the program, in one of the new processes."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, processes, number, initialization_timeout=60)
    Path(met).touch()
    try:
        runpy.run_path(program, run_name="__main__")
    except BaseException as error:  # noqa: BLE001  # an orderly end waits for the others, which may wait for this one
        code = error.code if isinstance(error, SystemExit) else 1
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        elif isinstance(code, str):
            sys.stderr.write(f"{code}\n")
        if code:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 1)
