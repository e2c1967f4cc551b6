"""A program in several processes that JAX joins into one."""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import jax

from ..errors import ArgumentError, KernelCheckError

_GRACE = 3.0  # seconds from the first failure to the end of the other processes, which may wait for the failed one


def run_in_processes(program: str, *, processes: int = 2, devices: int = 2, timeout: float = 180.0) -> list[str]:
    """Run a program in several processes on this machine, which JAX joins into one, with devices on the CPU.

    Use it to test programs that span machines. In the program, ``jax.devices()`` lists the devices of all processes,
    and collectives use gloo. All processes have ended when the call returns.

    Args:
      program: the text of a Python program. Each process runs all of it, after ``jax.distributed.initialize``.
      processes: number of processes.
      devices: number of devices of each process.
      timeout: seconds after which all processes must have ended.

    Returns:
      The output of each process: stdout and stderr in one text.

    Raises:
      KernelCheckError: if a process fails or the time limit is exceeded; the message has the output of each process.
      ArgumentError: if *processes* or *devices* is not a positive integer.

    Example:
      >>> from xlakernel.core.testing import run_in_processes
      >>> printed = run_in_processes("import jax; print(jax.device_count(), 'devices')", processes=1)
      >>> "2 devices" in printed[0]
      True
    """
    for name, number in (("processes", processes), ("devices", devices)):
        if not isinstance(number, int) or number < 1:
            raise ArgumentError(f"run_in_processes: {name} is {number!r}; expected a positive integer.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.py")
        path.write_text(program, "utf-8")
        address = f"127.0.0.1:{_free_port()}"
        texts = [path.with_name(f"{i}.txt") for i in range(processes)]  # a pipe that is not read would fill up
        running: list[subprocess.Popen[bytes]] = []
        try:
            for i, text in enumerate(texts):
                call = f"from {__name__} import join; join({address!r}, {processes}, {i}, {devices}, {str(path)!r})"
                with text.open("w") as file:
                    command = [sys.executable, "-c", call]
                    running.append(subprocess.Popen(command, env=environment(), stdout=file, stderr=subprocess.STDOUT))
            _wait(running, timeout)
        finally:
            for process in running:
                process.kill()
                process.wait()
        printed = [text.read_text("utf-8", "backslashreplace") for text in texts]
    codes = [process.returncode for process in running]
    if any(codes):
        listed = "\n".join(f"process {i}, exit code {codes[i]}:\n{text}" for i, text in enumerate(printed))
        raise KernelCheckError(f"run_in_processes: a process failed, or took more than {timeout:g} s.\n{listed}")
    return printed


def environment() -> dict[str, str]:
    """Return the environment of a process with the import path of this one."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def _wait(running: list[subprocess.Popen[bytes]], timeout: float) -> None:
    end, has_failed = time.monotonic() + timeout, False
    while time.monotonic() < end and None in (codes := [process.poll() for process in running]):
        if any(codes) and not has_failed:
            has_failed, end = True, min(end, time.monotonic() + _GRACE)
        time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def join(address: str, processes: int, number: int, devices: int, program: str) -> None:
    """Join the other processes and run the program; each new process calls this."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, processes, number, initialization_timeout=60)
    try:
        runpy.run_path(program, run_name="__main__")
    except BaseException as error:  # noqa: BLE001 - reported by the exit status
        if getattr(error, "code", 1):  # not `sys.exit()`
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)  # a normal exit would wait for the other processes, which may wait for this one
