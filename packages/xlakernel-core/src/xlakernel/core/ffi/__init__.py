"""The binary interface of the XLA FFI, and the registry of handlers."""
