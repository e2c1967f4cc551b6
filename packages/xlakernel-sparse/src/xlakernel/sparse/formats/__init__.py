"""Formats of sparse matrices: storage, products, selection and conversion."""
