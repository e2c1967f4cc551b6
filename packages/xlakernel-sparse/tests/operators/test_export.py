"""Products and gradients exported in one process and called in another, which does not import this package."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

COMMON = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp

folder = Path(sys.argv[1])
w = jnp.arange(1.0, 6.0)
structure = jnp.array([2, 0, 1, 0, 2]), jnp.array([0, 1, 3, 5])
x = jnp.array([1.0, 0.0, 2.0])
"""

WRITE = (
    COMMON
    + """
from xlakernel.core import export, use_backend
from xlakernel.sparse import CSR, BinaryArray

A = CSR((w, *structure), shape=(3, 3))
prepared = A.prepare()
programs = {
    "product": lambda x: A @ x,
    "events": lambda x: BinaryArray(x) @ A,
    "prepared": lambda x: prepared @ x + BinaryArray(x) @ prepared,
    "prepares": lambda x: x @ CSR((w, *structure), shape=(3, 3)).prepare(),
    "gradient": jax.grad(lambda x: jnp.sum((x @ A) ** 2)),
    "gradient of the weights": lambda x: jax.grad(lambda w: jnp.sum((A.with_data(w) @ x) ** 2))(w),
    "gradient of a prepared one": jax.grad(lambda x: jnp.sum((x @ prepared) ** 2)),
    "differentiable": lambda x: x @ A,
}
for name, program in programs.items():
    exported = export(jax.jit(program))(x)
    (folder / name).write_bytes(exported.serialize(vjp_order=name == "differentiable"))
with use_backend("jax"):
    (folder / "plain JAX").write_bytes(export(jax.jit(programs["prepared"]))(x).serialize())
(folder / "arguments").write_bytes(export(jax.jit(lambda w, x: A.with_data(w) @ x))(w, x).serialize())
"""
)

READ = (
    COMMON
    + """
import json
from xlakernel.core import deserialize

report = {}
for path in sorted(folder.iterdir()):
    call = deserialize(path.read_bytes()).call
    arguments = (w, x) if path.name == "arguments" else (x,)
    report[path.name] = call(*arguments).tolist()
    if path.name == "differentiable":
        report["its derivative"] = jax.grad(lambda x: jnp.sum(call(x) ** 2))(x).tolist()
print(json.dumps(report))
"""
)

A = np.array([[0, 0, 1], [2, 3, 0], [4, 0, 5]], "float64")
X = np.array([1.0, 0.0, 2.0])
VALUES = {
    "product": A @ X,
    "events": (X != 0) @ A,
    "prepared": A @ X + (X != 0) @ A,
    "plain JAX": A @ X + (X != 0) @ A,
    "prepares": X @ A,
    "arguments": A @ X,
    "gradient": 2 * A @ (X @ A),
    "gradient of a prepared one": 2 * A @ (X @ A),
    "gradient of the weights": 2 * (A @ X)[[0, 1, 1, 2, 2]] * X[[2, 0, 1, 0, 2]],
    "differentiable": X @ A,
    "its derivative": 2 * A @ (X @ A),
}


def run_python(code, folder):
    settings = {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(folder)],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PAIRS = """
from xlakernel.sparse import CSR, BinaryArray, BitPackedArray, CompactArray, WeightedArray

A = CSR((w, *structure), shape=(3, 3))
pairs = {
    "CSR": (BinaryArray(x), A),
    "prepared": (WeightedArray(x), A.prepare()),
    "CSC": (BitPackedArray(x), A.tocsc()),
    "COO": (CompactArray(x), A.tocoo()),
}
"""

WRITE_PAIRS = """
from xlakernel.core import export

for name, pair in pairs.items():
    exported = export(jax.jit(lambda events, matrix: (events @ matrix, events, matrix.T)))(*pair)
    (folder / name).write_bytes(exported.serialize())
(folder / "no kernel").write_bytes(export(jax.jit(lambda matrix: matrix.data))(pairs["CSR"][1]).serialize())
"""

# The programs are loaded first: `deserialize` imports what it needs.
READ_PAIRS = """
from xlakernel.core import deserialize
from xlakernel.core.errors import ExportError

try:
    deserialize((folder / "no kernel").read_bytes())
except ExportError as error:
    assert "xlakernel.sparse.CSR" in str(error) and "Import the module that registers" in str(error), error
else:
    raise AssertionError("loaded without a module that has the type")
programs = {name: deserialize((folder / name).read_bytes()) for name in ("COO", "CSC", "CSR", "prepared")}
"""

CALL_PAIRS = """
import json

report = {}
for name, (events, matrix) in pairs.items():
    product, again, turned = programs[name].call(events, matrix)
    assert type(again) is type(events) and type(turned) is type(matrix.T) and turned.shape == matrix.T.shape
    report[name] = [product.tolist(), (again @ turned.T).tolist()]
print(json.dumps(report))
"""


@pytest.mark.process
def test_matrices_and_events_are_arguments_and_results(tmp_path):
    run_python(COMMON + PAIRS + WRITE_PAIRS, tmp_path)
    found = json.loads(run_python(COMMON + READ_PAIRS + PAIRS + CALL_PAIRS, tmp_path))
    products = {name: X @ A if name == "prepared" else (X != 0) @ A for name in ("CSR", "prepared", "CSC", "COO")}
    assert found == {name: 2 * [product.tolist()] for name, product in products.items()}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    run_python(WRITE, folder)
    return json.loads(run_python(READ, folder))


@pytest.mark.slow
@pytest.mark.parametrize("name", VALUES)
def test_a_program_runs_in_another_process(report, name):
    np.testing.assert_allclose(report[name], VALUES[name], rtol=1e-6)
