"""Components of handlers: LLVM IR for the structs of the XLA FFI, machine code, locks, errors, and calls of Python."""
