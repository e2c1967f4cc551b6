"""On the CPU, XLA compiles without optimisation for tests, and keeps what it compiled for the next run.

Python's garbage collector runs less often, and JAX's caches are cleared before a process has too many memory mappings.
"""

import gc
import os
from importlib.metadata import version
from pathlib import Path

import pytest

# XLA's compilation of JAX's own operations takes most of the time of the tests, and with these flags a third of it.
# Kernels are compiled by Numba and Warp as ever. The tests of installed wheels have another conftest.py, and XLA's
# defaults.
FAST_COMPILATION = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
]
FAST_BEFORE_0_11 = ["--xla_cpu_use_fusion_emitters=false"]  # XLA ends a process with a flag that it has no more


def pytest_configure(config: pytest.Config) -> None:
    """Set what XLA reads when it starts, and have JAX keep its programs in pytest's cache.

    ``pytest --cache-clear`` empties that. JAX's environment variables are not used: child processes would inherit them.
    """
    if os.environ.get("JAX_PLATFORMS") != "cpu":
        return
    is_old = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
    flags = [*FAST_COMPILATION, *(FAST_BEFORE_0_11 if is_old else [])]
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")])
    if getattr(config, "cache", None) is None:
        return
    import jax

    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax-programs")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def pytest_collection_finish() -> None:
    """Keep Python's garbage collector from traversing imported modules, and let it run less often.

    Numba's compilation allocates many objects; with the defaults, a sixth of its time is garbage collection.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


# Linux allows a process 65 530 mappings by default, the setting vm.max_map_count.
MOST_MAPPINGS = 40_000


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Clear JAX's caches after a file's tests if the process has many memory mappings.

    Each program that XLA compiles for the CPU takes three. At Linux's limit XLA reports "Cannot allocate memory", or
    the process ends.
    """
    mappings = Path("/proc/self/maps")
    if nextitem is not None and nextitem.path != item.path and mappings.exists():
        with mappings.open("rb") as lines:
            many = sum(1 for _ in lines) > MOST_MAPPINGS
        if many:
            import jax

            jax.clear_caches()
            gc.collect()
