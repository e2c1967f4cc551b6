"""What is known not to go together: one function for each, which returns a finding only where it holds."""

from __future__ import annotations

from collections.abc import Callable

from .facts import Facts
from .findings import Finding
from .versions import release

#: The oldest release of each library that the packages work with, and the backends that it stops.
OLDEST: dict[str, tuple[str, tuple[str, ...]]] = {
    "jax": ("0.7.2", ("cpu", "gpu", "tpu")),
    "numpy": ("2.0", ("cpu", "gpu", "tpu")),
    "numba": ("0.61", ("numba", "numba_cuda")),
    "numba-cuda": ("0.24", ("numba_cuda",)),
    "warp-lang": ("1.14", ("warp",)),
    "cuda-bindings": ("12.9", ("gpu",)),
}

# The newest numba-cuda that was seen to break with NumPy 2.5; it is in maintenance, and no newer one is announced.
_BREAKS_ON_NUMPY, _KNOWN_TO_BREAK = "2.5", "0.30.4"
# The first driver that says what a kernel's parameters are (cuFuncGetParamInfo).
_OLDEST_DRIVER = (12, 4)


def too_old(facts: Facts) -> list[Finding]:
    """Libraries older than the oldest release that the packages work with."""
    found = []
    for name, (oldest, stops) in OLDEST.items():
        if facts.has(name) and facts.release(name) < release(oldest):
            text = f"{name} {facts.versions[name]} is older than {oldest}, the oldest that xlakernel works with."
            found.append(Finding(f"{name}-too-old", "problem", text, f'pip install -U "{name}>={oldest}"', stops=stops))
    return found


def numpy_for_numba_cuda(facts: Facts) -> Finding | None:
    """A NumPy with which numba-cuda fails: its metadata allows it, it may even import, and then cannot compile."""
    if not facts.has("numpy", "numba-cuda") or facts.release("numpy") < release(_BREAKS_ON_NUMPY):
        return None
    if facts.release("numba-cuda") > release(_KNOWN_TO_BREAK):
        return None
    return Finding(
        "numba-cuda-numpy",
        "problem",
        f"NumPy {facts.versions['numpy']} is too new for numba-cuda {facts.versions['numba-cuda']}, which cannot "
        "compile kernels with it.",
        f'pip install "numpy<{_BREAKS_ON_NUMPY}"',
        "https://github.com/NVIDIA/numba-cuda/issues/907",
        ("numba_cuda",),
    )


def plugin_of_jax(facts: Facts) -> list[Finding]:
    """A CUDA plugin of another version than jaxlib's: JAX leaves it out, or crashes."""
    found = []
    for plugin in ("jax-cuda12-plugin", "jax-cuda13-plugin"):
        if facts.has(plugin, "jaxlib") and facts.release(plugin) != facts.release("jaxlib"):
            text = (
                f"{plugin} {facts.versions[plugin]} does not go with jaxlib {facts.versions['jaxlib']}: JAX does not "
                "use it, or crashes."
            )
            mend = f'pip install "jax[{plugin[4:10]}]=={facts.versions.get("jax", facts.versions["jaxlib"])}"'
            link = "https://github.com/jax-ml/jax/issues/24901"
            found.append(Finding(f"{plugin}-jaxlib", "problem", text, mend, link, ("gpu",)))
    return found


def old_driver(facts: Facts) -> Finding | None:
    """A driver that cannot say what a kernel's parameters are."""
    if facts.driver is None or facts.driver >= _OLDEST_DRIVER:
        return None
    return Finding(
        "driver-too-old",
        "problem",
        f"The NVIDIA driver is for CUDA {facts.driver[0]}.{facts.driver[1]}. Kernels for the GPU need one for CUDA "
        f"{_OLDEST_DRIVER[0]}.{_OLDEST_DRIVER[1]} or newer, which is 550 on Linux.",
        link="https://www.nvidia.com/en-us/drivers/",
        stops=("gpu",),
    )


def cuda_of_the_driver(facts: Facts) -> Finding | None:
    """Libraries for a newer generation of CUDA than the driver's."""
    if facts.driver is None:
        return None
    majors = {name: facts.release(name)[0] for name in ("cuda-bindings", "cuda-toolkit") if facts.has(name)}
    majors |= {f"jax-cuda{major}-plugin": major for major in (12, 13) if facts.has(f"jax-cuda{major}-plugin")}
    newer = [name for name, major in majors.items() if major > facts.driver[0]]
    if not newer:
        return None
    package = next((name for name in ("xlakernel-cuda", "xlakernel-warp") if facts.has(name)), "xlakernel-core")
    plugins = [name for name in newer if name.startswith("jax-")]
    removed = [f"pip uninstall -y {name} {name.replace('plugin', 'pjrt')} && " for name in plugins]
    return Finding(
        "cuda-driver",
        "problem",
        f"The NVIDIA driver is for CUDA {facts.driver[0]}, and does not run what {', '.join(newer)} brought, which is "
        "for a newer one.",
        f'{"".join(removed)}pip install "{package}[cuda{facts.driver[0]}]"',
        "https://docs.nvidia.com/deploy/cuda-compatibility/",
        ("gpu",),
    )


def gpu_that_jax_does_not_use(facts: Facts) -> Finding | None:
    """A GPU that JAX could have and does not: as it was told to, or for lack of a plugin that works."""
    answer = facts.answered("jax")
    if answer is None or not facts.gpus or "gpu" in facts.platforms:
        return None
    text = f"JAX does not use the GPU ({facts.gpus[0]})"
    asked = facts.variables.get("JAX_PLATFORMS", "")
    if asked and not {"cuda", "gpu"} & set(asked.split(",")):
        text = f"{text}, as JAX_PLATFORMS={asked} tells it."
        return Finding("jax-gpu", "note", text, "unset JAX_PLATFORMS", stops=("gpu",))
    if facts.has("jax-cuda12-plugin") or facts.has("jax-cuda13-plugin"):
        said = f". It says: {answer['said']}" if "said" in answer else "."
        return Finding("jax-gpu", "problem", text + said, f'pip install -U "jax[{facts.cuda_extra}]"', stops=("gpu",))
    wanted = facts.has("numba-cuda") or facts.has("xlakernel-cuda")
    text = f"{text}: its CUDA plugin is not installed."
    mend = f'pip install "jax[{facts.cuda_extra}]"'
    return Finding("jax-gpu", "problem" if wanted else "note", text, mend, stops=("gpu",))


def no_jit(facts: Facts) -> Finding | None:
    """Numba is told not to compile."""
    if facts.variables.get("NUMBA_DISABLE_JIT", "0") in ("", "0"):
        return None
    text = "NUMBA_DISABLE_JIT is set: numba.njit returns plain functions, which cannot be kernels."
    return Finding("numba-disable-jit", "problem", text, "unset NUMBA_DISABLE_JIT", stops=("numba",))


def simulated_cuda(facts: Facts) -> Finding | None:
    """Numba is told to simulate a GPU."""
    if facts.variables.get("NUMBA_ENABLE_CUDASIM", "0") in ("", "0"):
        return None
    text = "NUMBA_ENABLE_CUDASIM is set: numba.cuda simulates a GPU in Python, and compiles no kernel."
    return Finding("numba-cudasim", "problem", text, "unset NUMBA_ENABLE_CUDASIM", stops=("numba_cuda",))


def missing(facts: Facts) -> list[Finding]:
    """Libraries that our packages need and that no other function looks for."""
    found = []
    users = {"xlakernel-cuda": "cuda-bindings", "xlakernel-warp": "cuda-bindings", "xlakernel-sparse": "scipy"}
    for user, used in users.items():
        if facts.has(user) and not facts.has(used):
            stops = () if used == "scipy" else ("gpu",)
            mend = f'pip install "{used}>=12.9"' if used == "cuda-bindings" else f"pip install {used}"
            text = f"{user} needs {used}, which is not installed."
            found.append(Finding(f"{user}-{used}", "problem", text, mend, stops=stops))
    return found


Rule = Callable[[Facts], "Finding | list[Finding] | None"]

RULES: tuple[Rule, ...] = (
    *(too_old, missing, numpy_for_numba_cuda, plugin_of_jax),
    *(old_driver, cuda_of_the_driver, gpu_that_jax_does_not_use, no_jit, simulated_cuda),
)


def known_incompatibilities(facts: Facts) -> list[Finding]:
    """Return what is known not to go together among what is here."""
    found: list[Finding] = []
    for rule in RULES:
        result = rule(facts)
        if result is not None:
            found += result if isinstance(result, list) else [result]
    return found
