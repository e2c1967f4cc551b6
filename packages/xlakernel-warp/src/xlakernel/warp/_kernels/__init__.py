"""Kernels of Warp: their launches, recorded and registered for each platform."""
