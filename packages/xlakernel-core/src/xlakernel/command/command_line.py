"""What the command ``xlakernel`` takes, and what it exits with."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .auto import auto
from .backends import backends
from .bench import bench
from .doctor import doctor
from .facts import own_versions
from .text import complain

_INTERRUPTED = 130  # as shells have it for what Ctrl-C ended
_EXIT_STATUS = "exit status: 0 if all is well, 1 if there is a problem, 2 if the command was not understood"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments; each subcommand says what it runs by ``run``."""
    version = own_versions().get("xlakernel-core", "unknown")
    top = argparse.ArgumentParser(
        prog="xlakernel",
        description="Look at the kernels that are installed for JAX and at what they need, and measure them.",
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
    _add_operators(two, "*", "show these only: ")
    _add_import(two)
    _add_common(two)
    two.set_defaults(
        run=lambda asked: backends(asked.operators, modules=asked.modules, as_json=asked.json, timeout=asked.timeout)
    )
    three = commands.add_parser(
        "bench",
        help="compare the backends of operators: first their results, then their times",
        description="Compare the backends of operators on this machine, with the cases that the operators have for it: "
        "XLACustomKernel.benchmark, which has more arguments.",
        epilog="exit status: 0; 1 if results differ or a backend failed; 2 if what was asked for is not there",
    )
    _add_operators(three, "+")
    _add_import(three)
    three.set_defaults(run=lambda asked: bench(asked.operators, modules=asked.modules))

    four = commands.add_parser(
        "auto",
        help='what backend="auto" chose on this machine; --reset lets it choose anew',
        description='List the backends that were measured to be the fastest, and are used where backend="auto" is '
        "asked for, with the time of a call with each.",
        epilog="exit status: 0; 1 if xlakernel.core cannot be imported, or a choice cannot be forgotten; 2 if there is "
        "neither a choice nor an operator of this name",
    )
    four.add_argument("operator", nargs="?", metavar="OPERATOR", help="those of this operator only")
    four.add_argument("--reset", action="store_true", help="forget them, so that the next calls measure anew")
    four.set_defaults(run=lambda asked: auto(asked.operator, reset=asked.reset))
    return top


def _add_operators(command: argparse.ArgumentParser, number: str, start: str = "") -> None:
    command.add_argument(
        "operators",
        nargs=number,
        metavar="OPERATOR",
        help=f"{start}an operator; a pattern of names, such as 'csr*'; or a tag, such as sparse, for all that have it",
    )


def _add_import(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        *("--import", "-i"),
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="import this module first, installed or in the current folder, which has operators of your own; may be "
        "repeated",
    )


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
    try:
        value = float(text)
    except ValueError:
        value = 0.0  # refused below, as argparse would name this function
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds; got {text}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``xlakernel``.

    Args:
      arguments: what stands behind its name; None: those of the process.

    Returns:
      The exit status: 0 if all is well, 1 if there is a problem, 2 if what was asked for is not there, 130 after
      Ctrl-C. What is not understood exits with status 2.
    """
    asked = parser().parse_args(arguments)
    try:
        status = int(asked.run(asked))
        sys.stdout.flush()
    except BrokenPipeError:  # as `xlakernel doctor | head` closes it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        complain("interrupted")
        return _INTERRUPTED
    return status
