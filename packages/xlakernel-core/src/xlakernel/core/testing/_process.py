"""One of the processes that `run_in_processes` starts: it joins the others, and runs the program.

Its arguments are the address at which the processes meet, how many there are, which of them this is, how many devices
each has, the path of a file to make once they have met, and that of the program.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

import jax


def main(address: str, processes: str, number: str, devices: str, met: str, program: str) -> None:
    """Join the other processes and run the program."""
    sys.path.insert(0, "")  # as for `python -c`; the folder of this file is not on the path
    jax.config.update("jax_num_cpu_devices", int(devices))
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, int(processes), int(number), initialization_timeout=60)
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


if __name__ == "__main__":
    main(*sys.argv[1:])
