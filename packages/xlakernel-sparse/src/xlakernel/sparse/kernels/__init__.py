"""The kernels of the operators, a package for each backend.

Each package provides generators. When a program is lowered, the operator calls a generator with ``outs``, the structs
of the results, and with static keywords. The generator returns a function of arrays. `xlakernel.sparse.operators` lists
the generators and their arguments.
"""
