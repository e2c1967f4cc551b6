"""The kernels of the operators, a package for each backend.

Each package provides generators: an operator calls one when a program is lowered, with ``outs`` and static keywords,
and it returns a function of arrays. `xlakernel.sparse.operators` lists their arguments.
"""
