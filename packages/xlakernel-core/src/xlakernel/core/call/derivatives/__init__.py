"""Derivatives of calls, as their authors declare them."""
