"""Arguments and exit statuses of the command ``xlakernel``."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence

from .backends import backends
from .demo import demo
from .doctor import doctor
from .facts import own_versions
from .measurements import auto, bench
from .operators import UnknownOperatorError
from .text import print_error

_DAY = 86_400  # seconds


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments. The parsed ``run`` is the subcommand's function."""
    top = argparse.ArgumentParser(
        prog="xlakernel",
        description="Examine the kernels that are installed for JAX and their libraries, and measure them.",
        epilog="exit status: 0 if all is well, 1 if there is a problem, 2 if the command is invalid",
    )
    version = own_versions().get("xlakernel-core", "unknown")
    top.add_argument("--version", action="version", version=f"xlakernel-core {version}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    asked = argparse.ArgumentParser(add_help=False)
    timeout = "how long a library may take to answer (default: 30)"
    asked.add_argument("--timeout", metavar="SECONDS", type=_number(float, 1e-3, _DAY), default=30.0, help=timeout)
    imported = argparse.ArgumentParser(add_help=False)
    module = "import this module first, for operators of your own; may be repeated"
    imported.add_argument("--import", "-i", dest="modules", metavar="MODULE", action="append", default=[], help=module)

    about = "installed versions, devices and incompatibilities, with the commands that fix them"
    one = commands.add_parser("doctor", parents=[asked], help=about, description=about)
    one.add_argument("--json", dest="as_json", action="store_true", help="print JSON, for scripts")
    one.set_defaults(run=doctor)
    about = "the kernels of each operator, and the reason if one cannot be used here"
    two = commands.add_parser("backends", parents=[imported, asked], help=about, description=about)
    two.add_argument("operators", nargs="*", metavar="OPERATOR", help="the name of an operator, or a tag")
    two.set_defaults(run=backends)
    about = "compare the backends of operators: first their results, then their times"
    three = commands.add_parser("bench", parents=[imported], help=about, description=about)
    three.add_argument("operators", nargs="+", metavar="OPERATOR", help="the name of an operator, or a tag")
    three.set_defaults(run=bench)
    about = 'the choices of backend="auto" on this machine'
    four = commands.add_parser("auto", help=about, description=about)
    four.add_argument("name", nargs="?", metavar="OPERATOR", help="the choices of this operator only")
    four.add_argument("--reset", action="store_true", help="forget them, so that the next calls measure anew")
    four.set_defaults(run=auto)
    about = "simulate a network of spiking neurons in one native call, with xlakernel-sparse"
    five = commands.add_parser("demo", help=about, description=about)
    neurons, seconds, seed = _number(int, 100, 20_000), _number(float, 1e-3, 10), _number(int, 0, 2**31 - 1)
    five.add_argument("--neurons", metavar="N", type=neurons, default=4000, help="their number (default: 4000)")
    five.add_argument("--seconds", metavar="S", type=seconds, default=1.0, help="the simulated time (default: 1)")
    five.add_argument("--seed", metavar="N", type=seed, default=0, help="of connections and initial state (default: 0)")
    five.set_defaults(run=demo)
    return top


def _number(kind: type[int | float], least: float, most: float) -> Callable[[str], float]:
    """Return a function that reads an argument from *least* to *most*."""
    name = {int: "a whole number", float: "a number"}[kind]

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not {name} from {least:g} to {most:g}")
        return value

    return read


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``xlakernel``.

    Args:
      arguments: the words after ``xlakernel`` on the command line; None: the arguments of this process.

    Returns:
      The exit status: 0 if all is well, 1 if there is a problem, 2 if there is no such operator. An invalid command
      exits with status 2.
    """
    options = vars(parser().parse_args(arguments))
    run = options.pop("run")
    positional = [options.pop(key) for key in ("operators", "name") if key in options]
    try:
        status = int(run(*positional, **options))
        sys.stdout.flush()
    except UnknownOperatorError as error:
        print_error(str(error))
        return 2
    except SystemExit as stopped:  # raised by an operator or an imported module
        print_error(f"an operator or a module called sys.exit({stopped.code!r})")
        return 1
    except BrokenPipeError:  # stdout is closed, as by `xlakernel doctor | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a file with a choice of backend="auto" cannot be removed
        print_error(str(error))
        return 1
    return status
