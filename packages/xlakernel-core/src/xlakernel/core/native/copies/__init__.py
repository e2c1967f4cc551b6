"""Copies of a kernel, its helpers and their modules and constants. The copies are compiled for handlers."""
