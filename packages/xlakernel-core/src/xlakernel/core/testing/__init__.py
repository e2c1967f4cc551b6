"""Checks that a kernel behaves under every transformation of JAX.

`check_kernel` tries one kernel, `run_in_processes` runs a program in several processes that JAX joins into one, and
`xlakernel.core.testing.conformance` has the tests of a backend, for which it needs the extra ``testing``.
"""

from ._check import check_kernel as check_kernel
from ._processes import run_in_processes as run_in_processes
from ._report import KernelReport as KernelReport
from ._report import Outcome as Outcome

__all__ = ["KernelReport", "Outcome", "check_kernel", "run_in_processes"]
