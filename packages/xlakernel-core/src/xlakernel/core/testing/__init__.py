"""Checks of kernels under every transformation of JAX.

`check_kernel` tries one kernel, and `run_in_processes` runs a program in several processes that JAX joins into one.
`xlakernel.core.testing.conformance` has tests of a backend, and needs the extra ``testing``.
"""

from ._check import check_kernel as check_kernel
from ._processes import run_in_processes as run_in_processes
from ._report import KernelReport as KernelReport
from ._report import Outcome as Outcome

__all__ = ["KernelReport", "Outcome", "check_kernel", "run_in_processes"]
