"""The lock of Warp's state about kernels and modules."""

import threading

#: Held while Warp compiles kernels and records launches, because Warp does not support that from several threads. A
#: thread that holds the lock calls no function of the user, and records nothing on a GPU.
lock = threading.RLock()
