"""Launch plans as machine code reads them, and the handler that replays them on XLA's stream."""
