"""Copies of a kernel, its helpers and their modules and constants, which are compiled for handlers."""
