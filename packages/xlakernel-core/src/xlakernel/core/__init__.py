"""Operators with many backends, and native handlers for kernels written in Python."""

from . import errors as errors
from .__about__ import __version__ as __version__
from .auto import tune as tune
from .auto_records import AutoChoice as AutoChoice
from .auto_records import auto_choices as auto_choices
from .auto_records import reset_auto_choices as reset_auto_choices
from .benchmark_program import BenchmarkCase as BenchmarkCase
from .benchmark_result import BenchmarkResult as BenchmarkResult
from .benchmark_result import Measurement as Measurement
from .config import debug_mode as debug_mode
from .config import use_backend as use_backend
from .errors import XLAKernelError as XLAKernelError
from .exported import Exported as Exported
from .exported import deserialize as deserialize
from .exported import export as export
from .operator.backends import KernelEntry as KernelEntry
from .operator.custom_kernel import XLACustomKernel as XLACustomKernel
from .operator.names import operators as operators

__all__ = [
    "AutoChoice",
    "BenchmarkCase",
    "BenchmarkResult",
    "Exported",
    "KernelEntry",
    "Measurement",
    "XLACustomKernel",
    "XLAKernelError",
    "__version__",
    "auto_choices",
    "debug_mode",
    "deserialize",
    "errors",
    "export",
    "operators",
    "reset_auto_choices",
    "tune",
    "use_backend",
]
