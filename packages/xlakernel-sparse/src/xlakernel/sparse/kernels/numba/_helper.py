"""How the functions are compiled that the kernels call."""

import functools

from numba import njit

#: ``numba.njit`` for what is only called by compiled code: without the code that Python would call it by, which takes
#: about as long to compile as a short function itself.
helper = functools.partial(njit, no_cpython_wrapper=True, no_cfunc_wrapper=True)
