"""Event arrays: spikes stored as arrays, as bits, or as the indices of the active elements."""
