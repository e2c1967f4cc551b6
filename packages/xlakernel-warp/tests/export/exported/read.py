"""Loads the programs in a folder, or those of them that are named, calls them, and prints the results."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

from xlakernel.core import deserialize

x = jnp.array([1.0, 2.0, 4.0])


def run(name, call):
    if name == "symbolic":
        return [call(jnp.tile(x, (rows, 1))).sum().tolist() for rows in (1, 5)]
    if name == "differentiable":
        return [call(x).tolist(), jax.grad(lambda x: jax.jit(call)(x).sum())(x).tolist()]
    return [call(x).tolist(), jax.jit(lambda x: call(x + 0) + 1)(x).tolist()]


report = {}
folder, names = Path(sys.argv[1]), sys.argv[2:]
for path in sorted(map(folder.joinpath, names) if names else folder.iterdir()):
    try:
        report[path.name] = run(path.name, deserialize(path.read_bytes()).call)
    except Exception as error:  # noqa: BLE001 - it is printed
        report[path.name] = f"{type(error).__name__}: {error}"
report["imported"] = "kernels" in sys.modules and "helpers" in sys.modules
print(json.dumps(report))
