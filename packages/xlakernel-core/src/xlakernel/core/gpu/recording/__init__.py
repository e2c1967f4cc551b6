"""What a function launches, read out of the CUDA graph of a captured stream."""
