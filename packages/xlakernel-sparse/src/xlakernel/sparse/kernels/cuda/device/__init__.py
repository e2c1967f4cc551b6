"""Device functions that the kernels share: memory, warps, tiles of entries, and what an entry adds to a result."""
