"""Operators: one name, one kernel for each platform and backend."""
