"""Recording of the work that a function launches, by the capture of its stream into a CUDA graph."""
