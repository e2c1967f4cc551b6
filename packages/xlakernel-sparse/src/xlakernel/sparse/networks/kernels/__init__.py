"""Kernels that run a network."""
