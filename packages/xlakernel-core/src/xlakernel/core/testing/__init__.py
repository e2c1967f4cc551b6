"""Checks that a kernel behaves under every transformation of JAX: `check_kernel`.

The same checks as a class of tests for a backend: `xlakernel.core.testing.conformance`, which needs the extra
``xlakernel-core[testing]``.
"""

from ._report import KernelReport as KernelReport
from ._report import Outcome as Outcome
from ._run import check_kernel as check_kernel

__all__ = ["KernelReport", "Outcome", "check_kernel"]
