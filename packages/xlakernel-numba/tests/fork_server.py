"""A server that has imported JAX, Numba and `xlakernel.numba`, and runs each program in a fork of itself.

JAX is not initialised and no kernel built before the fork, so the child differs from a new interpreter in the time that
its imports take, and in that all children hash strings alike. Requests and answers are lines of JSON: the program with
its arguments, environment, working directory and the files for its output; the child's process id; its exit status.
"""

import json
import os
import sys
import warnings

import jax.numpy  # noqa: F401
import ml_dtypes  # noqa: F401

import xlakernel.numba  # noqa: F401


def _serve():
    """Fork for each request; return the request, in the child."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return json.loads(line)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def _become(request):
    """Give the child the state of a new interpreter."""
    for descriptor, path in enumerate([os.devnull, *request["output"]]):
        opened = os.open(path, os.O_RDWR)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv[:] = ["-c", *request["arguments"]]
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = ["", *(folder for folder in folders if folder not in sys.path), *sys.path[1:]]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    warnings.resetwarnings()
    warnings.simplefilter("error" if request["strict"] else "default")


if __name__ == "__main__" and (_request := _serve()) is not None:
    _become(_request)
    exec(compile(_request["program"], "<string>", "exec"), vars(sys.modules["__main__"]))  # noqa: S102
