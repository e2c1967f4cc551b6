"""Measurements of an operator's backends: `XLACustomKernel.benchmark`, ``backend="auto"`` and `tune`."""
