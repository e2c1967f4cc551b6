"""Checks that a kernel behaves under every transformation of JAX: `check_kernel`; for a backend, `KernelConformance`.

`run_in_processes` runs a program in several processes that are one to JAX.
`KernelConformance` is a class of tests; it comes from `xlakernel.core.testing.conformance`, which needs the extra
``xlakernel-core[testing]``.
"""

from typing import Any as _Any

from ._processes import run_in_processes as run_in_processes
from ._report import KernelReport as KernelReport
from ._report import Outcome as Outcome
from ._run import check_kernel as check_kernel

__all__ = ["KernelReport", "Outcome", "check_kernel", "run_in_processes"]


def __getattr__(name: str) -> _Any:
    if name == "KernelConformance":  # when it is asked for: who only checks a kernel needs no pytest
        from .conformance import KernelConformance

        return KernelConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
