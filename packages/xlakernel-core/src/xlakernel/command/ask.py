"""Running the probes: all at once, each in its own process, for a limited time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from .probes import PATH, Answer

# What stands together is asked one after the other in one process, where the second needs what the first loads.
_TOGETHER = (("jax", "core"), ("numba", "numba_cuda"), ("warp",), ("driver",))

#: How an error begins, after its subject, that says that a process was ended for want of time.
NO_ANSWER = "gave no answer within"


def ask(names: Collection[str], timeout: float) -> dict[str, Answer]:
    """Return what the probes answer, each a dictionary; where one fails it has the key ``error``.

    Args:
      names: of the probes, keys of `probes.PROBES`.
      timeout: seconds that each process may take.
    """
    groups = [group for together in _TOGETHER if (group := [name for name in together if name in names])]
    with ThreadPoolExecutor(max_workers=len(_TOGETHER)) as pool:
        found = pool.map(lambda group: _ask_together(group, timeout), groups)
        return {name: answer for answers in found for name, answer in answers.items()}


def _ask_together(group: Sequence[str], timeout: float) -> dict[str, Answer]:
    # -P: the files beside the probes are no modules of the libraries.
    command = [sys.executable, "-P", str(PATH), *group]
    # JAX would take most of the GPU's memory from what runs there.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=timeout, check=False)
        out, err, end = done.stdout, done.stderr, _ending(done.returncode)
    except subprocess.TimeoutExpired as error:
        end = f"{NO_ANSWER} {timeout:g} s (--timeout lets it take longer)"
        out, err = error.stdout or b"", error.stderr or b""
    answers: dict[str, Answer] = {}
    for line in out.decode("utf-8", "replace").splitlines():
        answers |= json.loads(line)
    said = err.decode("utf-8", "replace").strip().splitlines()
    missing = [name for name in group if name not in answers]
    if missing:
        answers[missing[0]] = {"error": f"its process {end}{f'; its last words: {said[-1]}' if said else ''}"}
        answers |= {name: {"error": f"not asked, as {missing[0]} failed"} for name in missing[1:]}
    if said:
        answers[group[0]].setdefault("said", said[-1])
    return answers


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
