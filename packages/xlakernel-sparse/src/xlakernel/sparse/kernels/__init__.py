"""The kernels of the operators, a room for each backend.

Each room offers generators: functions that an operator calls when a program is lowered, with ``outs`` and static
keywords, and that return a function of arrays. What they are called with is said in `xlakernel.sparse.operators`.
"""
