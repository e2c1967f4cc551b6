"""Products of matrices in compressed rows, prepared or not: an operator for vectors and one for matrices each."""
