"""Functions that launch kernels of Warp."""
