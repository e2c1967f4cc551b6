"""Facade of `xlakernel.core.gpu` for packages that launch kernels on a GPU. Needs the extra ``xlakernel-core[gpu]``."""

from ..gpu import driver, warp_streams
from ..gpu.fill import fill
from ..gpu.launchable import Launchable
from ..gpu.plan import Array, arrays_of
from ..gpu.python_call import Run, build_python_handler
from ..gpu.recording import addresses
from ..gpu.recording.closure import Closure
from ..gpu.target import register, register_again

__all__ = [
    "Array",
    "Closure",
    "Launchable",
    "Run",
    "addresses",
    "arrays_of",
    "build_python_handler",
    "driver",
    "fill",
    "register",
    "register_again",
    "warp_streams",
]
