"""Functions that launch work on the GPU: their parameters, and the arrays and streams of libraries."""
