"""The subcommand ``xlakernel demo``; xlakernel-sparse contains the network."""

from __future__ import annotations

import importlib.util
import sys

from .install import install_command
from .operators import import_or_print
from .text import print_error, print_line


def demo(neurons: int, seconds: float, seed: int) -> int:
    """Simulate a network of spiking neurons; return the exit status.

    Args:
      neurons: the number of neurons.
      seconds: the simulated time.
      seed: a number that determines the random connections and the initial state.
    """
    if importlib.util.find_spec("xlakernel.sparse") is None:
        print_error(f"the demo needs xlakernel-sparse, which is not installed: {install_command('sparse')}")
        return 1
    network = import_or_print("xlakernel.sparse.networks.demo")
    if network is None:
        return 1
    for text in network.simulate(neurons, seconds, seed, getattr(sys.stdout, "encoding", None) or "utf-8"):
        print_line(text)
    return 0
