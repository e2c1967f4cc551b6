"""Philox, the counter-based generator of random words, for Numba and in plain JAX."""
