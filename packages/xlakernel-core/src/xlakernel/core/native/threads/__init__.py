"""Batches and parallel loops on the threads of XLA's own pool."""
