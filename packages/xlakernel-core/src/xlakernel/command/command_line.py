"""Arguments and exit statuses of the command ``xlakernel``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from .backends import backends
from .doctor import doctor
from .facts import own_versions
from .measurements import auto, bench


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments; ``run`` is the function of a subcommand."""
    top = argparse.ArgumentParser(
        prog="xlakernel",
        description="Look at the kernels that are installed for JAX and at their libraries, and measure them.",
        epilog="exit status: 0 if all is well, 1 if there is a problem, 2 if the command was not understood",
    )
    version = own_versions().get("xlakernel-core", "unknown")
    top.add_argument("--version", action="version", version=f"xlakernel-core {version}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    asked = argparse.ArgumentParser(add_help=False)
    asked.add_argument("--json", dest="as_json", action="store_true", help="print JSON, for scripts")
    timeout = "how long a library may take to answer (default: 30)"
    asked.add_argument("--timeout", metavar="SECONDS", type=float, default=30.0, help=timeout)
    imported = argparse.ArgumentParser(add_help=False)
    imported.add_argument(
        *("--import", "-i"),
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="import this module first, installed or in the current folder, for operators of your own; may be repeated",
    )
    operators: dict[str, Any] = {
        "metavar": "OPERATOR",
        "help": "an operator; a pattern of names, such as 'csr*'; or a tag, such as sparse, for all that have it",
    }

    one = commands.add_parser(
        "doctor",
        parents=[asked],
        help="installed versions, devices, and what does not go together",
        description="Print versions, devices and the state of each library, and what does "
        "not go together, each with the command that fixes it. Nothing is installed or changed.",
        epilog="exit status: 0; 1 if there is a problem",
    )
    one.set_defaults(run=doctor)
    two = commands.add_parser(
        "backends",
        parents=[imported, asked],
        help="the kernels of each operator, and which of them can be used here",
        description="List the operators of the installed packages, with the backends of each on each platform.",
        epilog="exit status: 0; 1 if a package cannot be imported; 2 if there is no such operator",
    )
    two.add_argument("operators", nargs="*", **operators)
    two.set_defaults(run=backends)
    three = commands.add_parser(
        "bench",
        parents=[imported],
        help="compare the backends of operators: first their results, then their times",
        description="Compare the backends of operators on this machine, with the cases that the operators have for it: "
        "XLACustomKernel.benchmark, which has more arguments.",
        epilog="exit status: 0; 1 if results differ or a backend failed; 2 if an operator or module is not there",
    )
    three.add_argument("operators", nargs="+", **operators)
    three.set_defaults(run=bench)
    four = commands.add_parser(
        "auto",
        help='the choices of backend="auto" on this machine; --reset forgets them',
        description="List the backends that were measured to be the fastest, with the time of a call with each; "
        'backend="auto" uses them.',
        epilog="exit status: 0; 1 if a choice cannot be forgotten; 2 if there is neither a choice nor an operator of "
        "this name",
    )
    four.add_argument("name", nargs="?", metavar="OPERATOR", help="the choices of this operator only")
    four.add_argument("--reset", action="store_true", help="forget them, so that the next calls measure anew")
    four.set_defaults(run=auto)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``xlakernel``.

    Args:
      arguments: the words after its name; None: those of the process.

    Returns:
      The exit status: 0 if all is well, 1 if there is a problem, 2 if what was asked for is not there. A command that
      is not understood exits with status 2.
    """
    asked = vars(parser().parse_args(arguments))
    run = asked.pop("run")
    names = asked.pop("operators", None)
    try:
        status = int(run(**asked) if names is None else run(names, **asked))
        sys.stdout.flush()
    except BrokenPipeError:  # as `xlakernel doctor | head` closes it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status
