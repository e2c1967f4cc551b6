"""Matrices, strategies and settings that several test files share."""

import importlib.util

import jax
import numpy as np
import pytest
import scipy.sparse
from hypothesis import settings
from hypothesis import strategies as st

from xlakernel.core import use_backend
from xlakernel.sparse import COO, CSC, CSR

# Several devices on one machine. JAX reads the setting when it starts.
if jax.config.jax_num_cpu_devices != 4:
    jax.config.update("jax_num_cpu_devices", 4)

settings.register_profile("xlakernel", deadline=None, database=None, max_examples=15)
settings.load_profile("xlakernel")

#: Shared by most tests, because each shape and number of entries compiles a program.
SHAPE = (5, 4)
ROOM = 10


@pytest.fixture
def x64():
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        yield


@pytest.fixture(scope="module")
def script(request):
    """The program ``SCRIPT`` of a file of tests, as a module."""
    path = request.module.SCRIPT
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plain_jax():
    """Use the plain JAX kernels, which compile fastest, in all tests of a file."""
    with use_backend("jax"):
        yield


@pytest.fixture(scope="session", params=[CSR, CSC, COO], ids=lambda kind: kind.__name__)
def kind(request):
    """A format."""
    return request.param


def place_entries(entries, shape):
    """Return the dense matrix of the entries ``(row, column, weight)``, in double precision; duplicates add up."""
    complexes = any(np.iscomplexobj(weight) for *_, weight in entries)
    dense = np.zeros(shape, np.complex128 if complexes else np.float64)
    for row, column, weight in entries:
        dense[row, column] += weight
    return dense


def build_matrix(kind, entries, shape=SHAPE, *, room=ROOM, dtype="float32", index="int32", equal=None):
    """Make a matrix of entries as they are, neither sorted nor summed, with padding behind up to *room*.

    The weights of padding are NaN if the dtype has it: they must not reach any result.
    """
    room = max(room, len(entries))
    axis = {CSR: 0, CSC: 1, COO: None}[kind]
    if axis is not None:
        entries = sorted(entries, key=lambda entry: entry[axis])  # stable: unsorted within a line
    padding = np.nan if np.dtype(dtype).kind in "fcV" else 77
    data = np.full(room, padding, np.complex128 if np.dtype(dtype).kind == "c" else np.float64)
    data[: len(entries)] = [weight for *_, weight in entries]
    data = data.astype(dtype) if equal is None else np.array([equal], dtype)
    outside = [kind is COO and extent for extent in shape]
    places = [
        np.array([entry[i] for entry in entries] + [outside[i]] * (room - len(entries)), index).reshape(room)
        for i in (0, 1)
    ]
    if axis is None:
        return COO((data, *places), shape=shape)
    lines = places[axis][: len(entries)].astype(np.intp)  # NumPy before 2.2 counts no uint64
    indptr = np.concatenate([[0], np.cumsum(np.bincount(lines, minlength=shape[axis]))]).astype(index)
    return kind((data, places[1 - axis], indptr), shape=shape)


@pytest.fixture(scope="session")
def build():
    """Return `build_matrix`."""
    return build_matrix


@pytest.fixture(scope="session")
def dense_of():
    """Return `place_entries`."""
    return lambda entries, shape=SHAPE: place_entries(entries, shape)


@pytest.fixture(scope="session")
def entries():
    """Return a strategy of entries in a matrix of 5 rows and 4 columns: unsorted, duplicates among them, up to 10.

    Weights are small integers, so that sums are exact in every dtype.
    """
    entry = st.tuples(st.integers(0, SHAPE[0] - 1), st.integers(0, SHAPE[1] - 1), st.integers(-3, 3))
    return st.lists(entry, max_size=ROOM)


#: Unsorted, with a duplicate, a stored zero, an empty row and an empty column.
ENTRIES = [(4, 3, 2.0), (0, 2, -1.0), (2, 3, 3.0), (0, 0, 1.0), (4, 0, -2.0), (2, 3, 1.0), (1, 2, 0.0)]


@pytest.fixture(scope="session")
def odd():
    """Return unsorted entries with a duplicate, a stored zero, an empty row and an empty column."""
    return list(ENTRIES)


@pytest.fixture
def matrix(kind, odd):
    """Return a matrix of each format, of the odd entries and with padding."""
    return build_matrix(kind, odd)


@pytest.fixture
def dense(odd):
    """Return the same matrix, dense, in float32."""
    return place_entries(odd, SHAPE).astype(np.float32)


@pytest.fixture
def known(dense):
    """Return the same matrix as one of SciPy's."""
    return scipy.sparse.csr_array(dense)


def check_smooth(function, *x):
    """Compare derivatives of both modes, of first and second order, with differences; *x* are arrays of float64.

    All derivatives are one program: `jax.test_util.check_grads` compiles twenty.
    """
    rng = np.random.default_rng(0)
    along, cotangent = (jax.tree.map(lambda like: rng.normal(size=like.shape), each) for each in (x, function(*x)))

    def first(*x):
        return jax.jvp(function, x, along)[1], jax.vjp(function, *x)[1](cotangent)

    @jax.jit
    def derivatives(*x):
        found, second = jax.jvp(first, x, along)
        return found, second, jax.vjp(first, *x)[1](found)

    def differences(function):
        above, below = (function(*(a + step * b for a, b in zip(x, along, strict=True))) for step in (1e-5, -1e-5))
        return jax.tree.map(lambda a, b: (np.asarray(a) - np.asarray(b)) / 2e-5, above, below)

    def product(one, other):
        return sum(map(np.vdot, jax.tree.leaves(one), jax.tree.leaves(other)))

    (tangent, pulled), second, pulled_back = derivatives(*x)
    for found, expected in (
        (tangent, differences(function)),
        (second, differences(lambda *x: derivatives(*x)[0])),
        (product(pulled, along), product(cotangent, tangent)),
        (product(pulled_back, along), product((tangent, pulled), second)),
    ):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), found, expected)


@pytest.fixture(scope="session")
def smooth():
    """Return `check_smooth`."""
    return check_smooth


_compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **__: _compiled.append(event) if event.endswith("backend_compile_duration") else None
)


@pytest.fixture(scope="session")
def compilations():
    """Return a function that counts XLA's compilations while another runs."""

    def count(function):
        before = len(_compiled)
        jax.block_until_ready(function())
        return len(_compiled) - before

    return count
