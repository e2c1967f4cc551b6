"""The XLA FFI: its binary interface as data, and the names under which handlers are known to it."""
