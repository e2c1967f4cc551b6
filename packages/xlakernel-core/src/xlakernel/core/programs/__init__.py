"""Programs with kernels as bytes for another process: written, compared with what is there, and made again."""
