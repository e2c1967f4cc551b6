"""Matrices as immutable pytrees, with the attributes of arrays."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core.errors import DtypeError, InputError, ShapeError
from xlakernel.sparse import COO, CSC, CSR, SparseMatrix

pytestmark = pytest.mark.usefixtures("plain_jax")

NAMES = {CSR: ("data", "indices", "indptr"), CSC: ("data", "indices", "indptr"), COO: ("data", "row", "col")}


def arrays_of(matrix):
    return tuple(getattr(matrix, name) for name in NAMES[type(matrix)])


# Construction


def test_a_matrix_has_what_it_was_made_of(matrix, dense):
    assert isinstance(matrix, SparseMatrix)
    assert matrix.shape == (5, 4) and matrix.ndim == 2
    assert matrix.nnz == 10  # padding among them
    assert matrix.dtype == jnp.float32
    assert not matrix.homogeneous
    assert all(isinstance(array, jax.Array) for array in arrays_of(matrix))
    assert_array_equal(matrix.todense(), dense)


def test_one_weight_is_that_of_all_entries(kind, build, odd, dense_of):
    matrix = build(kind, odd, equal=2.5)
    assert matrix.homogeneous and matrix.data.shape == (1,)
    assert_array_equal(matrix.todense(), dense_of([(i, j, 2.5) for i, j, _ in odd]))


@pytest.mark.parametrize("index", ["int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64"])
def test_indices_of_other_integers_become_int32(kind, build, odd, index):
    matrix = build(kind, odd, index=index)
    assert [array.dtype for array in matrix.structure] == [jnp.int32] * 2


@pytest.mark.parametrize(("index", "expected"), [("int32", "int32"), ("int64", "int64"), ("uint32", "int64")])
@pytest.mark.usefixtures("x64")
def test_indices_may_be_of_64_bits(kind, build, odd, dense, index, expected):
    matrix = build(kind, odd, index=index)
    assert [array.dtype for array in matrix.structure] == [jnp.dtype(expected)] * 2
    assert_array_equal(matrix.todense(), dense)


@pytest.mark.parametrize(("pointers", "places"), [("int32", "int64"), ("int64", "int32")])
@pytest.mark.usefixtures("x64")
def test_both_index_arrays_have_their_own_dtype(pointers, places):
    arrays = np.ones(2, np.float32), np.array([2, 0], places), np.array([0, 1, 2], pointers)
    matrix = CSR(arrays, shape=(2, 3))
    assert (matrix.indptr.dtype, matrix.indices.dtype) == (pointers, places)
    expected = [[0, 0, 1], [1, 0, 0]]
    assert_array_equal(matrix.todense(), expected)
    assert_array_equal(matrix.tocsc().todense(), expected)
    assert_array_equal(matrix.tocoo().todense(), expected)
    assert_array_equal(matrix.diagonal(), [0, 0])


def test_lists_make_a_matrix():
    matrix = CSR(([1.0, 2.0], [2, 0], [0, 1, 2]), shape=[2, 3])
    assert matrix.shape == (2, 3)
    assert_array_equal(matrix.todense(), [[0, 0, 1], [2, 0, 0]])


def test_what_numpy_arrays_are_changed_to_later_does_not_matter(kind):
    """An array that is aligned as JAX likes it could be used in place, and checked indices be changed."""
    memory = np.zeros(3 * 4096 + 64, np.int8)
    start = -memory.ctypes.data % 64
    first, second, data = memory[start : start + 3 * 4096].view(np.int32).reshape(3, 1024)
    second[-1] = 1023 if kind is not COO else 0
    data = data.view(np.float32)
    shape = {CSR: (1023, 1), CSC: (1, 1023), COO: (1, 1)}[kind]
    matrix = kind((data, first, second), shape=shape)
    before = [np.array(leaf) for leaf in jax.tree.leaves(matrix)]
    memory[:] = 99
    for leaf, expected in zip(jax.tree.leaves(matrix), before, strict=True):
        assert_array_equal(leaf, expected)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (3, 2)])
def test_a_matrix_may_be_empty(kind, build, shape):
    matrix = build(kind, [], shape, room=0)
    assert matrix.nnz == 0
    assert_array_equal(matrix.todense(), np.zeros(shape))


# A pytree


def test_all_arrays_are_leaves_and_the_shape_is_not(matrix):
    leaves, tree = jax.tree.flatten(matrix)
    assert len(leaves) == 3
    assert all(leaf is array for leaf, array in zip(leaves, arrays_of(matrix), strict=True))
    assert hash(tree) == hash(jax.tree.structure(matrix))
    again = jax.tree.unflatten(tree, leaves)
    assert type(again) is type(matrix) and again.shape == matrix.shape


def test_leaves_are_named_as_the_attributes(matrix):
    named = jax.tree_util.tree_leaves_with_path(matrix)
    assert [jax.tree_util.keystr(path) for path, _ in named] == [f".{name}" for name in NAMES[type(matrix)]]


def test_a_prepared_matrix_has_what_was_added_as_leaves_too(build, odd):
    matrix = build(CSR, odd).prepare()
    assert len(jax.tree.leaves(matrix)) == 7
    assert len(jax.tree.leaves(build(CSR, odd, equal=1.0).prepare())) == 6  # the one weight is not mirrored


def test_two_matrices_share_a_compiled_function(kind, build, odd):
    """Indices are leaves: in the treedef, they would make each matrix compile anew."""
    traced = []

    @jax.jit
    def double(matrix):
        traced.append(matrix)
        return matrix * 2

    entries = [(1, 1, 5.0), (3, 0, 6.0)]
    for given in (odd, entries):
        matrix = build(kind, given)
        assert_array_equal(double(matrix).todense(), 2 * matrix.todense())
    assert len(traced) == 1
    assert jax.tree.structure(build(kind, odd)) == jax.tree.structure(build(kind, entries))


def test_matrices_of_other_shapes_are_other_trees(kind, build):
    assert jax.tree.structure(build(kind, [], (5, 4))) != jax.tree.structure(build(kind, [], (4, 5)))


def test_a_matrix_is_made_inside_of_jit(matrix, dense):
    kind = type(matrix)
    made = jax.jit(lambda *arrays: kind(arrays, shape=(5, 4)))(*arrays_of(matrix))
    assert type(made) is kind
    assert_array_equal(made.todense(), dense)


def test_a_matrix_is_carried_through_a_loop(matrix, dense):
    def step(matrix, _):
        return matrix * 2.0, matrix.todense()

    last, history = jax.lax.scan(step, matrix, length=3)
    assert type(last) is type(matrix)
    assert_array_equal(last.todense(), 8 * dense)
    assert_array_equal(history, np.stack([dense, 2 * dense, 4 * dense]))


def test_a_prepared_matrix_is_carried_through_a_loop(build, odd, dense):
    matrix = build(CSR, odd).prepare()
    last, _ = jax.lax.scan(lambda matrix, _: (matrix * 2.0, None), matrix, length=3)
    assert last.prepared is not None
    assert_array_equal(last @ jnp.ones(4), 8 * dense.sum(axis=1))
    assert_array_equal(jnp.ones(5) @ last, 8 * dense.sum(axis=0))


def test_a_batch_of_matrices_is_stacked(matrix, dense):
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), matrix, matrix * 3)
    assert_array_equal(jax.vmap(lambda matrix: matrix.todense())(stacked), np.stack([dense, 3 * dense]))


def test_weights_are_put_where_there_are_none(matrix, dense):
    """Some programs store the structure without the trained weights."""
    structure = matrix._like(data=None)
    assert_array_equal(structure.with_data(matrix.data).todense(), dense)


def test_several_matrices_are_not_taken_for_one(matrix):
    """Coordinates of two matrices would add up to one dense array, without an error."""
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), matrix)
    assert f"nnz={matrix.nnz}, batch=(2,))" in repr(stacked)
    of_weights = matrix._like(data=jnp.stack([matrix.data, matrix.data]))
    assert f"nnz={matrix.nnz}, batch=(2,))" in repr(of_weights)
    looks = (
        *(
            lambda A: A.todense(),
            lambda A: A.diagonal(),
            lambda A: A * jnp.ones((5, 1)),
            lambda A: -A,
            lambda A: A.sum(),
        ),
        *(lambda A: A @ jnp.ones(4), lambda A: jnp.ones(5) @ A, lambda A: A.with_data(A.data), lambda A: A.to_scipy()),
        *(lambda A: A.to_bcsr(), lambda A: A.tocsc().tocsr().tocoo(), lambda A: A.prepare()),
        lambda A: A.shard(jax.make_mesh((1,), ("x",)), "x"),
    )
    for several in (stacked, of_weights):
        for look in looks[: 11 if isinstance(matrix, COO) else 13]:
            with pytest.raises(ShapeError, match=r"a batch of matrices.*jax\.vmap"):
                look(several)


def test_a_branch_chooses_between_matrices(matrix, dense):
    chosen = jax.jit(lambda yes: jax.lax.cond(yes, lambda: matrix, lambda: matrix * 5))
    assert_array_equal(chosen(True).todense(), dense)
    assert_array_equal(chosen(False).todense(), 5 * dense)


def test_tree_map_reaches_each_array(matrix):
    mapped = jax.tree.map(lambda leaf: leaf.dtype, matrix)
    assert [mapped.data, *mapped.structure] == [jnp.float32, jnp.int32, jnp.int32]


def test_eval_shape_gives_a_matrix_of_structs(matrix):
    result = jax.eval_shape(lambda matrix: matrix.astype("float16"), matrix)
    assert type(result) is type(matrix)
    assert result.data == jax.ShapeDtypeStruct((10,), jnp.float16)
    assert (result.shape, result.nnz, result.dtype) == ((5, 4), 10, jnp.float16)
    assert repr(result) == repr(matrix.astype("float16"))


def test_a_gradient_may_be_a_matrix(matrix):
    """JAX differentiates by all leaves, and those of integers have none."""
    gradient = jax.grad(lambda matrix: matrix.todense()[4, 3] * 7, allow_int=True)(matrix)
    assert type(gradient) is type(matrix)
    dense = np.zeros((5, 4))
    dense[4, 3] = 7
    assert_array_equal(matrix.with_data(gradient.data).todense(), dense)
    assert all(array.dtype == jax.dtypes.float0 for array in gradient.structure)


# Immutable


def test_attributes_are_neither_set_nor_deleted(matrix):
    for name in (*NAMES[type(matrix)], "shape", "new"):
        with pytest.raises(AttributeError, match=f"immutable: {name} cannot be set"):
            setattr(matrix, name, None)
        with pytest.raises(AttributeError, match=f"immutable: {name} cannot be deleted"):
            delattr(matrix, name)


def test_elements_are_not_set(matrix):
    with pytest.raises(TypeError, match=r"immutable: elements cannot be set.*A\.data\.at"):
        matrix[0, 0] = 1.0


@pytest.mark.parametrize(
    "convert",
    [np.asarray, np.array, jnp.asarray, lambda A: np.dot(A, np.ones(4)), lambda A: np.savez("_", A)],
    ids=["np.asarray", "np.array", "jnp.asarray", "np.dot", "np.savez"],
)
def test_a_matrix_is_not_converted_implicitly(matrix, convert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    errors, text = InputError, r"is not converted to a dense array implicitly\. A\.todense\(\)"
    if convert is jnp.asarray and jax.__version_info__ < (0, 8):  # which takes it for a pytree
        errors, text = (TypeError, ValueError), "None is not a valid value|Unexpected input type"
    with pytest.raises(errors, match=text):
        convert(matrix)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda matrix: pickle.loads(pickle.dumps(matrix))])
def test_a_matrix_is_copied_and_pickled(matrix, dense, duplicate):
    again = duplicate(matrix)
    assert type(again) is type(matrix) and again.shape == matrix.shape
    assert_array_equal(again.todense(), dense)


def test_a_prepared_matrix_is_pickled_with_what_was_added(build, odd, dense):
    again = pickle.loads(pickle.dumps(build(CSR, odd).prepare()))
    assert again.prepared is not None
    assert_array_equal(again @ jnp.ones(4), dense.sum(axis=1))


# As arrays do


def test_repr_says_what_it_is(kind, build, odd):
    name = kind.__name__
    assert repr(build(kind, odd)) == f"{name}(float32[5,4], nnz=10)"
    assert repr(build(kind, odd, dtype="int8")) == f"{name}(int8[5,4], nnz=10)"
    assert repr(build(kind, odd, equal=1.0)) == f"{name}(float32[5,4], nnz=10, equal weights)"
    assert repr(build(kind, [(1, 2, 1.0)], room=1)) == f"{name}(float32[5,4], nnz=1)"
    if kind is not COO:
        assert repr(build(kind, odd).prepare()) == f"{name}(float32[5,4], nnz=10, prepared)"


def test_repr_of_what_jax_puts_into_pytrees(matrix):
    """JAX fills trees with other objects, and prints them in messages."""
    name = type(matrix).__name__
    assert repr(jax.tree.map(lambda leaf: 0, matrix)) == f"{name}((0, 0, 0), shape=(5, 4))"
    assert repr(jax.tree.map(lambda leaf: None, matrix)) == f"{name}((None, None, None), shape=(5, 4))"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "uint8", "complex64"])
def test_astype(kind, build, odd, dense, dtype):
    matrix = build(kind, [(row, column, abs(weight)) for row, column, weight in odd])
    cast = matrix.astype(dtype)
    assert type(cast) is kind and cast.dtype == jnp.dtype(dtype)
    assert_array_equal(cast.todense().real.astype("float32"), abs(dense))


def test_astype_keeps_what_was_prepared(build, odd, dense):
    matrix = build(CSR, odd).prepare().astype("float16")
    assert matrix.prepared is not None and matrix.prepared.mirror.data.dtype == jnp.float16
    assert_array_equal(jnp.ones(5, "float16") @ matrix, dense.sum(axis=0))


def test_a_matrix_of_bools_is_refused(matrix):
    with pytest.raises(DtypeError, match=r"data is of dtype bool.*astype\('float32'\)"):
        matrix.astype(bool)


def test_conj(kind, build):
    matrix = build(kind, [(0, 1, 1 + 2j), (3, 3, 4j)], dtype="complex64")
    assert_array_equal(matrix.conj().todense(), matrix.todense().conj())
    assert_array_equal(matrix.conjugate().todense(), matrix.todense().conj())
    real = build(kind, [(0, 1, 1.0)])
    assert_array_equal(real.conj().todense(), real.todense())


def test_transposed_it_has_the_same_arrays(matrix, dense):
    transposed = matrix.T
    assert type(transposed) is {CSR: CSC, CSC: CSR, COO: COO}[type(matrix)]
    assert transposed.shape == (4, 5)
    assert_array_equal(transposed.todense(), dense.T)
    assert {id(leaf) for leaf in jax.tree.leaves(transposed)} == {id(leaf) for leaf in jax.tree.leaves(matrix)}
    assert_array_equal(matrix.transpose().todense(), dense.T)
    assert type(transposed.T) is type(matrix)
    assert_array_equal(transposed.T.todense(), dense)


@pytest.mark.parametrize("kind", [CSR, CSC])
def test_transposed_it_stays_prepared(build, odd, kind):
    matrix = build(kind, odd).prepare()
    assert matrix.T.prepared is matrix.prepared


# Other weights


def test_with_data_keeps_the_structure(matrix, dense):
    changed = matrix.with_data(matrix.data * 3)
    assert all(mine is others for mine, others in zip(changed.structure, matrix.structure, strict=True))
    assert_array_equal(changed.todense(), 3 * dense)
    assert_array_equal(matrix.todense(), dense)


def test_with_data_takes_one_weight_and_back(matrix, dense):
    equal = matrix.with_data(jnp.array([2.0]))
    assert equal.homogeneous
    assert_array_equal(equal.todense(), matrix.with_data(jnp.full(10, 2.0)).todense())
    assert_array_equal(equal.with_data(matrix.data).todense(), dense)


@pytest.mark.parametrize("kind", [CSR, CSC])
def test_with_data_keeps_what_was_prepared(build, odd, dense, kind):
    matrix = build(kind, odd).prepare()
    for changed in (matrix.with_data(matrix.data * 3), matrix.with_data([1.0]).with_data(matrix.data * 3)):
        assert changed.prepared.mirror.permutation is matrix.prepared.mirror.permutation
        assert_array_equal(changed @ jnp.ones(4), 3 * dense.sum(axis=1))
        assert_array_equal(jnp.ones(5) @ changed, 3 * dense.sum(axis=0))


@pytest.mark.parametrize("weights", [2, 1], ids=["own", "equal"])
def test_weights_without_a_strong_dtype_have_one(kind, weights):
    """JAX makes numbers of Python weak: beside x they would take its dtype."""
    places = (jnp.array([0, 1]), jnp.array([0, 1]) if kind is COO else jnp.array([0, 1, 2]))
    weak = jnp.full(weights, 200)
    assert weak.weak_type
    matrix = kind((weak, *places), shape=(2, 2))
    for one in (matrix, matrix.with_data(weak), matrix.tocsc(), jax.jit(lambda: matrix.with_data(weak))()):
        product = one @ jnp.ones(2, jnp.int8)
        assert product.dtype == one.dtype == jnp.int32
        assert_array_equal(product, [200, 200])


@pytest.mark.parametrize("data", [np.ones(9, "float32"), np.ones((10, 1), "float32"), np.float32(1)])
def test_with_data_of_another_length_is_refused(matrix, data):
    with pytest.raises(ShapeError, match=r"with_data: data has the shape .* expected \(10,\).*or \(1,\)"):
        matrix.with_data(data)


def test_gradients_reach_the_weights(matrix):
    gradient = jax.grad(lambda data: (matrix.with_data(data).todense() ** 2).sum())(matrix.data)
    places = np.stack(matrix.coordinates())
    for k in range(7):
        row, column = places[:, k]
        assert gradient[k] == 2 * matrix.todense()[row, column]
    assert_array_equal(gradient[7:], 0)  # padding


def test_lines_are_the_rows_or_the_columns():
    arrays = [1.0, 2.0], [2, 0], [0, 1, 2]
    assert CSR(arrays, shape=(2, 3)).line_shape == (2, 3)
    assert CSC(arrays, shape=(3, 2)).line_shape == (2, 3)


@pytest.mark.parametrize("name", ["prepare", "shard"])
def test_coordinates_are_compressed_before_they_are_prepared_or_spread(name):
    matrix = COO((np.ones(1), np.zeros(1, int), np.zeros(1, int)), shape=(1, 1))
    assert not hasattr(matrix, name)
    with pytest.raises(AttributeError, match=rf"COO has no {name}; compress it first: A\.tocsr\(\)\.{name}\("):
        getattr(matrix, name)
    with pytest.raises(AttributeError, match="'COO' object has no attribute 'todens'"):
        matrix.todens  # noqa: B018  # the attribute is the test
