"""Debug mode: calls that run on guarded copies of their arrays."""
