"""Exported programs with kernels: written as bytes, loaded in another process, and compared with its kernels."""
