"""What handlers are built of: LLVM IR over the XLA FFI's structs, machine code, locks, errors, and calls of Python."""
