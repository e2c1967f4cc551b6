"""Settings that several test files share."""

import jax

# Several devices without several machines. It must be said before JAX starts, which some files do when collected.
if jax.config.jax_num_cpu_devices != 4:
    jax.config.update("jax_num_cpu_devices", 4)
