"""Fingerprints of functions: hashes of everything that a compiler freezes into their machine code."""
