"""Tests on the CPU keep what XLA compiles: run again, they take down to a third of the time."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Have JAX keep its programs in pytest's cache, which ``pytest --cache-clear`` empties.

    Not by JAX's environment variables: processes that tests start would have them too.
    """
    if os.environ.get("JAX_PLATFORMS") != "cpu" or getattr(config, "cache", None) is None:
        return
    import jax

    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax-programs")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
