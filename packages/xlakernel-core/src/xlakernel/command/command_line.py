"""What the command ``xlakernel`` takes, and what it exits with."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .backends import backends
from .doctor import doctor
from .facts import own_versions

_EXIT_STATUS = "exit status: 0 if all is well, 1 if there is a problem, 2 if the command was not understood"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments; each subcommand says what it runs by ``run``."""
    version = own_versions().get("xlakernel-core", "unknown")
    top = argparse.ArgumentParser(
        prog="xlakernel",
        description="Look at the kernels that are installed for JAX, and at what they need.",
        epilog=_EXIT_STATUS,
    )
    top.add_argument("--version", action="version", version=f"xlakernel-core {version}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    one = commands.add_parser(
        "doctor",
        help="what is installed, what it runs on, and what does not go together",
        description="Print versions, devices, Numba's threading layer and the state of CUDA and Warp, and say what "
        "does not go together, each with the command that mends it. Nothing is installed or changed.",
        epilog=_EXIT_STATUS,
    )
    _add_common(one)
    one.set_defaults(run=lambda asked: doctor(as_json=asked.json, timeout=asked.timeout))

    two = commands.add_parser(
        "backends",
        help="the kernels that each operator has, and which of them can be used here",
        description="List the operators of the installed packages, with the backends that each has on each platform.",
        epilog="exit status: 0; 1 if a package cannot be imported; 2 if there is no such operator",
    )
    two.add_argument("operator", nargs="?", metavar="OPERATOR", help="show this operator only")
    two.add_argument(
        *("--import", "-i"),
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="import this module first, which has operators of your own; may be repeated",
    )
    _add_common(two)
    two.set_defaults(
        run=lambda asked: backends(asked.operator, modules=asked.modules, as_json=asked.json, timeout=asked.timeout)
    )
    return top


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON, for scripts")
    command.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=30.0,
        help="how long a library may take to answer (default: 30)",
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds; got {text}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``xlakernel``.

    Args:
      arguments: what stands behind its name; None: those of the process.

    Returns:
      The exit status: 0 if all is well, 1 if there is a problem. What is not understood exits with status 2.
    """
    asked = parser().parse_args(arguments)
    try:
        status = int(asked.run(asked))
        sys.stdout.flush()
    except BrokenPipeError:  # as `xlakernel doctor | head` closes it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status
