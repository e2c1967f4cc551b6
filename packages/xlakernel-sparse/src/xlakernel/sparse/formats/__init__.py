"""Formats of sparse matrices: how entries are stored, multiplied, selected and converted."""
