"""The products, for each format: an operator for vectors and one for matrices."""
