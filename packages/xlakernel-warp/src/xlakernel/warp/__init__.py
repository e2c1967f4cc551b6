"""NVIDIA Warp kernels, on CPU and GPU, as native JAX operations."""

from .__about__ import __version__ as __version__
from ._jax_callable import jax_callable as jax_callable
from ._jax_kernel import jax_kernel as jax_kernel
from ._types import jaxinfo_to_warpinfo as jaxinfo_to_warpinfo
from ._types import jaxtype_to_warptype as jaxtype_to_warptype
from ._types import warpinfo_to_jaxinfo as warpinfo_to_jaxinfo
from ._types import warptype_to_jaxtype as warptype_to_jaxtype
from ._warp_kernel import warp_kernel as warp_kernel

__all__ = [
    "__version__",
    "jax_callable",
    "jax_kernel",
    "jaxinfo_to_warpinfo",
    "jaxtype_to_warptype",
    "warp_kernel",
    "warpinfo_to_jaxinfo",
    "warptype_to_jaxtype",
]
