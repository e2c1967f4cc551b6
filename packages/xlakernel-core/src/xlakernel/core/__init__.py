"""Operators with many backends, and native handlers for kernels written in Python."""

from . import errors as errors
from .__about__ import __version__ as __version__
from .config import use_backend as use_backend
from .errors import XLAKernelError as XLAKernelError
from .kernel import KernelEntry as KernelEntry
from .kernel import XLACustomKernel as XLACustomKernel
from .kernel import operators as operators

__all__ = ["KernelEntry", "XLACustomKernel", "XLAKernelError", "__version__", "errors", "operators", "use_backend"]
