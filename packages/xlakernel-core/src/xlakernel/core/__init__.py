"""Operators with many backends, and native handlers for kernels written in Python."""

from . import errors as errors
from .__about__ import __version__ as __version__
from .config import debug_mode as debug_mode
from .config import use_backend as use_backend
from .errors import XLAKernelError as XLAKernelError
from .measure.benchmark import BenchmarkCase as BenchmarkCase
from .measure.choices import AutoChoice as AutoChoice
from .measure.choices import auto_choices as auto_choices
from .measure.choices import reset_auto_choices as reset_auto_choices
from .measure.result import BenchmarkResult as BenchmarkResult
from .measure.result import Measurement as Measurement
from .measure.tune import tune as tune
from .operator.backends import KernelEntry as KernelEntry
from .operator.custom_kernel import XLACustomKernel as XLACustomKernel
from .operator.names import operators as operators
from .programs.export import Exported as Exported
from .programs.export import deserialize as deserialize
from .programs.export import export as export

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
