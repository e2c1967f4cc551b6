"""Device functions that the kernels share: memory, warps, tiles of entries, and terms of a result."""
