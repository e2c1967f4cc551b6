"""The lock of Warp's state about kernels and modules."""

import threading

#: Held while Warp compiles and records launches, which it does not support from several threads. A thread that holds it
#: calls no function of the user, and records nothing on a GPU.
lock = threading.RLock()
