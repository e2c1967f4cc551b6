"""Event arrays: spikes as arrays, as bits, and as the numbers of the active elements."""
