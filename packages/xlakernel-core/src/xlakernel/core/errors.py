"""The exceptions and warnings of xlakernel.

A message has the request, the value that was found, the allowed values, and the next step. Each exception also derives
from the builtin exception of its kind: ``except TypeError`` catches an `InputError`, for example.
"""

import pickle


class XLAKernelError(Exception):
    """The base class of all exceptions of this project."""


class DuplicateNameError(XLAKernelError, ValueError):
    """An operator of this name exists already."""


class UnknownPlatformError(XLAKernelError, ValueError):
    """A platform other than ``cpu``, ``gpu`` and ``tpu`` was named."""


class BackendNotFoundError(XLAKernelError, LookupError):
    """No kernel of the requested backend is registered for the platform."""


class PlatformError(XLAKernelError, RuntimeError):
    """A program is compiled for a platform that the kernel does not run on."""


class MissingDependencyError(XLAKernelError, ImportError):
    """A required package is not installed."""


class InputError(XLAKernelError, TypeError):
    """An argument of a call is not an array."""


class ArgumentError(XLAKernelError, ValueError):
    """An argument of a function of this project has a value that is not allowed."""


class StaticArgumentError(XLAKernelError, TypeError):
    """A static keyword argument is traced, unhashable, or of an unusable type."""


class OutputSpecError(XLAKernelError, TypeError):
    """``outs`` does not describe arrays."""


class ResultError(XLAKernelError, ValueError):
    """A kernel returned results that differ from ``outs`` in number, shape or dtype."""


class KernelTypeError(XLAKernelError, TypeError):
    """An object given as a kernel or a function is of the wrong type."""


class ArityError(XLAKernelError, TypeError):
    """A kernel's parameters do not match the inputs, outputs and scalars of a call."""


class AliasError(XLAKernelError, ValueError):
    """``input_output_aliases`` does not fit the call."""


class ShapeError(XLAKernelError, ValueError):
    """The shapes of arrays do not fit each other, or their role."""


class StructureError(XLAKernelError, ValueError):
    """Index arrays do not describe a sparse matrix, or the matrix does not have the required structure."""


class DtypeError(XLAKernelError, TypeError):
    """A dtype is not supported by the backend."""


class ShardingRuleError(XLAKernelError, ValueError):
    """``sharding_rule`` is not a rule, or does not fit the call."""


class VmapMethodError(XLAKernelError, ValueError):
    """``vmap_method`` is unknown, or does not allow ``jax.vmap``."""


class SideEffectError(XLAKernelError, NotImplementedError):
    """A kernel with ``has_side_effect`` is called in a context where it would run more or fewer times."""


class GeneratorError(XLAKernelError, RuntimeError):
    """A kernel generator or the kernel that it returned raised an error, or the kernel does not suit the operator."""


class KernelCheckError(XLAKernelError, AssertionError):
    """A kernel failed checks of `xlakernel.core.testing`; ``report`` has the outcome of each."""

    def __init__(self, message: str, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class CompileError(XLAKernelError, RuntimeError):
    """The backend's compiler refused a kernel."""


class ReadOnlyInputError(CompileError, TypeError):
    """A kernel writes to one of its inputs."""


class LaunchError(XLAKernelError, ValueError):
    """The grid, blocks, shared memory or initial outputs of a launch are invalid."""


class RecordingError(XLAKernelError, RuntimeError):
    """The GPU operations of a function cannot be recorded or replayed."""


class RecordingWarning(UserWarning):
    """A function cannot be recorded, and runs through Python instead."""


class AutoBackendWarning(UserWarning):
    """``backend="auto"`` has no measurement and uses the default, or a measurement cannot be stored on disk."""


class GatheredOperandsWarning(UserWarning):
    """A call without a sharding rule has operands that are split over devices: each device gathers all of them."""


class CacheWarning(UserWarning):
    """Compiled code cannot be read from or stored in the cache folder; it is compiled in each process."""


class DeviceError(XLAKernelError, RuntimeError):
    """There is no GPU, there is no driver for the GPU, or the driver refused a request."""


class DifferentiationError(XLAKernelError, NotImplementedError):
    """A kernel or operator has no rule for the requested derivative."""


class ExportError(XLAKernelError, ValueError):
    """A program cannot be exported or loaded, for example because a kernel has changed or the file is damaged."""


class PickledKernelError(XLAKernelError, RuntimeError, pickle.UnpicklingError):
    """A kernel was pickled by name, and this process has no kernel, or a different one, under that name."""


class SettingError(XLAKernelError, ValueError):
    """A setting, such as an environment variable, has an invalid value."""


class AbiError(XLAKernelError, RuntimeError):
    """The installed runtime has a version of the XLA FFI that this release does not support."""
