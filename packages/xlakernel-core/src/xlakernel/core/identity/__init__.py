"""Fingerprints of functions: hashes of all that a compiler freezes into their machine code."""
