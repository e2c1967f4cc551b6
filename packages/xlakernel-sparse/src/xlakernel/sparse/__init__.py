"""Sparse matrices, event arrays and the operators between them, for JAX."""

from .__about__ import __version__ as __version__
