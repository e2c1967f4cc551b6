"""The lock of what Warp keeps of kernels and modules."""

import threading

#: Held while Warp compiles and records, which it does not support from several threads. A thread that holds it calls no
#: function of the user's, and records nothing on a GPU.
lock = threading.RLock()
