"""Calls a kernel in several ways, and prints hits and misses of JAX's persistent cache, and the results."""

import json
import sys

import jax
import jax.numpy as jnp
from jax import monitoring
from kernels import plain, wrap

from xlakernel.core import export

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
events = []
monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))
x = jnp.arange(3.0)
report = []
for function in (wrap(plain), jax.vmap(wrap(plain))):
    given = x if not report else x[None]
    jitted = jax.jit(function)
    for call in (jitted, export(jitted)(given).call):
        events.clear()
        result = call(given)
        report.append([events.count("cache_hits"), events.count("cache_misses"), result.ravel().tolist()])
print(json.dumps(report))
