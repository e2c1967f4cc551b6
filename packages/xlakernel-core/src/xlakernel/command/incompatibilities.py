"""Known incompatibilities. Each has a function that yields a finding if this environment is affected."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .facts import Facts, release
from .findings import Finding
from .install import install_command

# The oldest NumPy and the newest numba-cuda that fail together. numba-cuda is in maintenance: none newer is announced.
_BREAKS_ON_NUMPY, _KNOWN_TO_BREAK = "2.5", "0.30.4"


def numpy_for_numba_cuda(facts: Facts) -> Iterator[Finding]:
    """Find a NumPy with which numba-cuda cannot compile, although numba-cuda's metadata and import may allow it."""
    numpy, cuda = (facts.versions.get(name) for name in ("numpy", "numba-cuda"))
    if not numpy or not cuda:
        return
    if release(numpy) >= release(_BREAKS_ON_NUMPY) and release(cuda) <= release(_KNOWN_TO_BREAK):
        yield Finding(
            "numba-cuda-numpy",
            "problem",
            f"NumPy {numpy} is too new for numba-cuda {cuda}, which cannot compile kernels with it.",
            f'pip install "numpy<{_BREAKS_ON_NUMPY}"',
            "https://github.com/NVIDIA/numba-cuda/issues/907",
            ("numba_cuda",),
        )


def cuda_of_the_driver(facts: Facts) -> Iterator[Finding]:
    """Find libraries for a newer generation of CUDA than the driver's."""
    installed = facts.versions
    majors = {name: release(installed[name])[0] for name in ("cuda-bindings", "cuda-toolkit") if name in installed}
    majors |= {f"jax-cuda{major}-plugin": major for major in (12, 13) if f"jax-cuda{major}-plugin" in installed}
    newer = [name for name, major in majors.items() if facts.driver is not None and major > facts.driver[0]]
    if newer and facts.driver is not None:
        package = next((name for name in ("xlakernel-cuda", "xlakernel-warp") if name in installed), "xlakernel-core")
        plugins = [name for name in newer if name.startswith("jax-")]
        removed = [f"pip uninstall -y {name} {name.replace('plugin', 'pjrt')} && " for name in plugins]
        yield Finding(
            "cuda-driver",
            "problem",
            f"The NVIDIA driver is for CUDA {facts.driver[0]}, and does not run {', '.join(newer)}, which need a newer "
            "driver.",
            "".join(removed) + install_command(package.removeprefix("xlakernel-"), f"cuda{facts.driver[0]}"),
            "https://docs.nvidia.com/deploy/cuda-compatibility/",
            ("gpu",),
        )


def gpu_that_jax_does_not_use(facts: Facts) -> Iterator[Finding]:
    """Find a GPU that JAX does not use: because of a setting, or for lack of a plugin that works."""
    answer, installed = facts.answered("jax"), facts.versions
    if not answer or not facts.gpus or "gpu" in facts.platforms:
        return
    asked = facts.variables.get("JAX_PLATFORMS", "")
    plugin = not installed.keys().isdisjoint({"jax-cuda12-plugin", "jax-cuda13-plugin"})
    fix, why = f'pip install -U "jax[{facts.cuda_extra}]"', "its CUDA plugin is not installed."
    if is_excluded := bool(asked) and not {"cuda", "gpu"} & set(asked.split(",")):
        fix, why = "unset JAX_PLATFORMS", f"JAX_PLATFORMS is {asked}."
    elif plugin:
        why = f"a CUDA plugin is installed, with the message: {answer.get('message')}"
    is_problem = not is_excluded and (plugin or "numba-cuda" in installed or "xlakernel-cuda" in installed)
    text = f"JAX does not use the GPU ({facts.gpus[0]}): {why}"
    yield Finding("jax-gpu", "problem" if is_problem else "note", text, fix, stops=("gpu",))


def numba_that_compiles_nothing(facts: Facts) -> Iterator[Finding]:
    """Find the setting that makes ``njit`` return plain Python functions, which are no kernels."""
    setting = facts.variables.get("NUMBA_DISABLE_JIT", "0")
    if setting not in ("", "0") and "numba" in facts.versions:
        yield Finding(
            "numba-disable-jit",
            "problem",
            f"NUMBA_DISABLE_JIT is {setting}: Numba compiles nothing, and there are no Numba kernels.",
            "unset NUMBA_DISABLE_JIT",
            "https://numba.readthedocs.io/en/stable/reference/envvars.html",
            ("numba", "numba_cuda"),
        )


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    *(numpy_for_numba_cuda, cuda_of_the_driver, gpu_that_jax_does_not_use, numba_that_compiles_nothing),
)
