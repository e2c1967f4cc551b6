"""Parameters of functions that launch work on the GPU, and the arrays and streams of libraries."""
