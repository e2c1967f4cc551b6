"""Every exception that xlakernel raises, and what it warns of.

Each message says what was asked, what was found, what is allowed, and what to do next. A class also derives from the
builtin that its kind of mistake has in Python, so that ``except TypeError`` means what it says.
"""

import pickle


class XLAKernelError(Exception):
    """The root: catch it to catch everything that this project raises."""


class DuplicateNameError(XLAKernelError, ValueError):
    """An operator of this name exists already."""


class UnknownPlatformError(XLAKernelError, ValueError):
    """A platform other than ``cpu``, ``gpu`` and ``tpu`` was named."""


class BackendNotFoundError(XLAKernelError, LookupError):
    """No kernel of the requested backend is registered for the platform."""


class PlatformError(XLAKernelError, RuntimeError):
    """A kernel was asked to run on a platform that it was not written for."""


class MissingDependencyError(XLAKernelError, ImportError):
    """A package that the request needs is not installed."""


class InputError(XLAKernelError, TypeError):
    """An argument of a call is not an array."""


class ArgumentError(XLAKernelError, ValueError):
    """An argument of one of our own functions is none of what it allows."""


class StaticArgumentError(XLAKernelError, TypeError):
    """A static keyword argument is traced, unhashable, or of an unusable type."""


class OutputSpecError(XLAKernelError, TypeError):
    """``outs`` does not describe arrays."""


class ResultError(XLAKernelError, ValueError):
    """A kernel returned results other in number, shape or dtype than ``outs`` says."""


class KernelTypeError(XLAKernelError, TypeError):
    """The object given as a kernel is not of the kind that the wrapper takes."""


class ArityError(XLAKernelError, TypeError):
    """A kernel's parameters do not match the inputs, outputs and scalars of a call."""


class AliasError(XLAKernelError, ValueError):
    """``input_output_aliases`` asks for what cannot be."""


class ShapeError(XLAKernelError, ValueError):
    """Arrays whose shapes do not fit each other, or what they stand for."""


class StructureError(XLAKernelError, ValueError):
    """Index arrays that describe no sparse matrix, or not the one that is needed."""


class DtypeError(XLAKernelError, TypeError):
    """A dtype that no kernel of this backend can take."""


class ShardingRuleError(XLAKernelError, ValueError):
    """``sharding_rule`` cannot be read, or does not fit the call."""


class VmapMethodError(XLAKernelError, ValueError):
    """``vmap_method`` is unknown, or does not allow ``jax.vmap``."""


class SideEffectError(XLAKernelError, NotImplementedError):
    """A kernel with ``has_side_effect`` stands where JAX or XLA cannot run it exactly as the program says."""


class GeneratorError(XLAKernelError, RuntimeError):
    """A kernel generator, or the kernel that it returned, raised, or the kernel does not suit the operator."""


class KernelCheckError(XLAKernelError, AssertionError):
    """A kernel failed checks of `xlakernel.core.testing`; ``report`` says what came of each."""

    def __init__(self, message: str, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class CompileError(XLAKernelError, RuntimeError):
    """The backend's compiler refused a kernel."""


class ReadOnlyInputError(CompileError, TypeError):
    """A kernel writes to one of its inputs."""


class LaunchError(XLAKernelError, ValueError):
    """A kernel cannot be launched as asked: its grid, its blocks or its shared memory."""


class RecordingError(XLAKernelError, RuntimeError):
    """What a function does on the GPU cannot be recorded, or cannot be replayed."""


class RecordingWarning(UserWarning):
    """A function was to be recorded if possible, cannot be, and runs through Python instead."""


class AutoBackendWarning(UserWarning):
    """``backend="auto"`` takes the default because nothing was measured, or cannot keep on disk what was."""


class GatheredOperandsWarning(UserWarning):
    """A call without a sharding rule has operands that are split over devices: each device gathers all of them."""


class CacheWarning(UserWarning):
    """Compiled code cannot be read from the user's cache folder, or kept there; it is compiled in each process."""


class DeviceError(XLAKernelError, RuntimeError):
    """There is no GPU, no driver for it, or the driver refused a request."""


class DifferentiationError(XLAKernelError, NotImplementedError):
    """A derivative was asked of something that has no rule for it."""


class ExportError(XLAKernelError, ValueError):
    """A program cannot be exported, or an exported one cannot be loaded, because a kernel changed or the bytes did."""


class PickledKernelError(XLAKernelError, RuntimeError, pickle.UnpicklingError):
    """The name that a kernel was pickled with leads to nothing here, or to another kernel."""


class SettingError(XLAKernelError, ValueError):
    """A setting, such as an environment variable, has a value that means nothing."""


class AbiError(XLAKernelError, RuntimeError):
    """The installed runtime speaks a version of the XLA FFI that this release does not know."""
