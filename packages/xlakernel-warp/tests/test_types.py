"""Dtypes and array types, from JAX to Warp and back."""

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export

from xlakernel.core.errors import ArgumentError, DtypeError, InputError
from xlakernel.warp._types import (
    SCALARS,
    jaxinfo_to_warpinfo,
    jaxtype_to_warptype,
    split_warptype,
    warpinfo_to_jaxinfo,
    warptype_to_jaxtype,
)

PAIRS = {
    "bool": wp.bool,
    "int8": wp.int8,
    "int16": wp.int16,
    "int32": wp.int32,
    "int64": wp.int64,
    "uint8": wp.uint8,
    "uint16": wp.uint16,
    "uint32": wp.uint32,
    "uint64": wp.uint64,
    "float16": wp.float16,
    "bfloat16": wp.bfloat16,
    "float32": wp.float32,
    "float64": wp.float64,
}
SPELLINGS = {
    "a name": str,
    "NumPy's dtype": jnp.dtype,
    "JAX's scalar type": lambda name: getattr(jnp, name),
    "NumPy's scalar type": lambda name: jnp.dtype(name).type,
    "Warp's scalar type": PAIRS.get,
}
COMPOSITES = {
    wp.vec2h: ("float16", (2,)),
    wp.vec3: ("float32", (3,)),
    wp.vec4ub: ("uint8", (4,)),
    wp.types.vector(5, wp.bfloat16): ("bfloat16", (5,)),
    wp.mat22: ("float32", (2, 2)),
    wp.types.matrix((2, 7), wp.int64): ("int64", (2, 7)),
    wp.quatd: ("float64", (4,)),
    wp.transform: ("float32", (7,)),
    wp.spatial_vector: ("float32", (6,)),
    wp.spatial_matrixd: ("float64", (6, 6)),
}

shapes = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)
properties = settings(deadline=None, database=None, max_examples=100)


@wp.struct
class Particle:
    mass: float


def struct(shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


@pytest.fixture(params=[False, True], ids=["32 bits", "64 bits"])
def enable_x64(request):
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", request.param)
    yield request.param
    jax.config.update("jax_enable_x64", before)


def test_the_tables_have_every_number_of_warp():
    python, warps = {int, float}, set(wp.Scalar.__constraints__)
    assert set(SCALARS) == warps - python | {wp.bool} == set(PAIRS.values())


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_every_dtype_there_and_back(name, spelling, enable_x64):
    there = jaxtype_to_warptype(spelling(name))
    assert there is PAIRS[name]
    back = warptype_to_jaxtype(there)
    assert isinstance(back, np.dtype)
    assert back == jnp.dtype(name)


@pytest.mark.parametrize("python", [bool, int, float])
def test_pythons_types_mean_what_they_mean_to_jax(python, enable_x64):
    assert jaxtype_to_warptype(python) is jaxtype_to_warptype(jnp.zeros(3, python).dtype)


def test_back_from_pythons_types_they_mean_what_they_mean_to_warp(enable_x64):
    for python in (bool, int, float):
        assert warptype_to_jaxtype(python) == warptype_to_jaxtype(wp.array(dtype=python, ndim=1).dtype)
        assert split_warptype(python) == (wp.array(dtype=python, ndim=1).dtype, ())


@pytest.mark.parametrize(("dtype", "expected"), COMPOSITES.items(), ids=str)
def test_vectors_and_matrices_have_their_numbers_dtype(dtype, expected):
    name, inner = expected
    assert warptype_to_jaxtype(dtype) == jnp.dtype(name)
    assert split_warptype(dtype) == (PAIRS[name], inner)


@properties
@given(name=st.sampled_from(list(PAIRS)), shape=shapes)
def test_arrays_there_and_back(name, shape):
    info = struct(shape, name)
    annotation = jaxinfo_to_warpinfo(info)
    assert isinstance(annotation, wp.array)
    assert (annotation.dtype, annotation.ndim) == (PAIRS[name], len(shape))
    assert warpinfo_to_jaxinfo(annotation, shape) == info


@properties
@given(dtype=st.sampled_from(list(COMPOSITES)), shape=shapes)
def test_arrays_of_vectors_there_and_back(dtype, shape):
    name, inner = COMPOSITES[dtype]
    info = struct(shape + inner, name)
    annotation = jaxinfo_to_warpinfo(info, dtype=dtype)
    assert (annotation.dtype, annotation.ndim) == (dtype, len(shape))
    assert warpinfo_to_jaxinfo(annotation, shape) == info


@pytest.mark.parametrize("dtype", [int, wp.int32])
def test_the_element_may_be_named_though_it_is_a_number(dtype):
    annotation = jaxinfo_to_warpinfo(struct((2, 3), "int32"), dtype=dtype)
    assert (annotation.dtype, annotation.ndim) == (wp.int32, 2)


def test_objects_with_a_shape_and_a_dtype():
    described = []

    def describe(x):
        described.append(jaxinfo_to_warpinfo(x))
        return x

    x = jnp.ones((2, 3), jnp.bfloat16)
    jax.jit(describe)(x)
    described += [jaxinfo_to_warpinfo(a) for a in (x, np.asarray(x), jax.typeof(x), jax.eval_shape(lambda: x))]
    assert [(a.dtype, a.ndim) for a in described] == 5 * [(wp.bfloat16, 2)]


def test_symbolic_extents():
    n, m = export.symbolic_shape("n, m")
    assert jaxinfo_to_warpinfo(struct((n, m, 3)), dtype=wp.vec3).ndim == 2
    assert warpinfo_to_jaxinfo(wp.array2d[wp.vec3], (n, m)).shape == (n, m, 3)


def test_an_array_of_warp_has_its_own_shape():
    array = wp.zeros((2, 5), dtype=wp.mat33d, device="cpu")
    assert warpinfo_to_jaxinfo(array) == struct((2, 5, 3, 3), "float64")
    assert warpinfo_to_jaxinfo(array, (1, 1)) == struct((1, 1, 3, 3), "float64")
    assert warpinfo_to_jaxinfo(wp.zeros(0, dtype=float, device="cpu")) == struct((0,))


@pytest.mark.parametrize("annotation", [wp.array[float], wp.array(dtype=float), wp.array1d[wp.float32]], ids=str)
def test_every_spelling_of_an_annotation(annotation):
    assert warpinfo_to_jaxinfo(annotation, 7) == warpinfo_to_jaxinfo(annotation, np.int64(7)) == struct((7,))


def test_annotations_make_kernels():
    annotation = jaxinfo_to_warpinfo(struct((4,), "float64"))
    matrices = jaxinfo_to_warpinfo(struct((4, 2, 2)), dtype=wp.mat22)
    number = jaxtype_to_warptype(jnp.int32)

    @wp.kernel(module="unique")
    def halve_or_zero(x: annotation, m: matrices, least: number, out: annotation):
        i = wp.tid()
        out[i] = annotation.dtype(0.0)
        if i >= least:
            out[i] = annotation.dtype(0.5) * x[i] + annotation.dtype(m[i][0, 1])

    x = wp.array(np.arange(4.0), dtype=wp.float64, device="cpu")
    m = wp.array(np.full((4, 2, 2), 10.0, np.float32), dtype=wp.mat22, device="cpu")
    out = wp.empty(4, dtype=wp.float64, device="cpu")
    wp.launch(halve_or_zero, dim=4, inputs=[x, m, 2], outputs=[out], device="cpu")
    assert out.numpy().tolist() == [0.0, 0.0, 11.0, 11.5]


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (jnp.complex64, r"no numbers of dtype complex64.*Allowed: bool, int8.*bfloat16.*as two arrays or as vectors"),
        (complex, "no numbers of dtype complex"),
        (jnp.int4, r"int4.*cast the array"),
        (jnp.float8_e4m3fn, "float8_e4m3fn"),
        (">f4", "'>f4'"),
        ("U3", "'U3'"),
        (object, "object"),
        (jnp.dtype("f4,i4"), "f0"),
        (wp.vec3, "vec3f"),
        ("nonsense", "'nonsense' is not a dtype that Warp has: .*not understood"),
        (jax.random.key(0).dtype, r"key<fry>.*pass jax\.random\.key_data"),
        (None, "None would be NumPy's default"),
        (3.0, r"3\.0 is not a dtype"),
        (np.zeros(3), "is not a dtype"),
    ],
    ids=repr,
)
def test_dtypes_that_warp_lacks(dtype, message):
    with pytest.raises(DtypeError, match=message):
        jaxtype_to_warptype(dtype)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        pytest.param(Particle, "Particle", id="a struct"),  # its repr has an address
        (Any, "Any"),
        (wp.Float, "Float"),
        (wp.array[float], "wp.array"),
        ("float32", "'float32'"),
        (np.float32, "float32"),
        (np.dtype("float32"), "float32"),  # equal to wp.float32 with some versions
        (complex, "complex"),
        (3, "3"),
        ([wp.float32], "float32"),
    ],
    ids=["struct", "Any", "generic", "array", "name", "NumPy", "dtype", "complex", "number", "list"],
)
def test_types_whose_numbers_jax_lacks(dtype, name):
    for given_as in (warptype_to_jaxtype, lambda t: jaxinfo_to_warpinfo(struct((3,)), dtype=t)):
        with pytest.raises(
            DtypeError, match=rf"{name}.* is not a type of numbers that JAX has; allowed: wp\.bool, wp\.int8"
        ):
            given_as(dtype)


@pytest.mark.parametrize("info", [3.0, None, jnp, [1.0], struct])
def test_what_has_no_shape_and_dtype(info):
    with pytest.raises(InputError, match=r"has no shape and dtype; give an array, or a jax\.ShapeDtypeStruct"):
        jaxinfo_to_warpinfo(info)


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "message"),
    [
        (
            (),
            None,
            ArgumentError,
            r"of shape \(\) has 0 dimensions in Warp.*1 to 4; reshape it, or pass a single number",
        ),
        ((3,), wp.vec3, ArgumentError, r"of shape \(3,\) with elements vec3f has 0 dimensions"),
        ((1,) * 5, None, ArgumentError, "has 5 dimensions in Warp, whose arrays have 1 to 4"),
        ((1, 1, 1, 1, 1, 2, 2), wp.mat22, ArgumentError, "has 5 dimensions"),
        ((4, 3), wp.vec2, ArgumentError, r"of shape \(4, 3\) cannot hold vec2f; its shape must end in \(2,\)"),
        ((2,), wp.mat22, ArgumentError, r"must end in \(2, 2\)"),
        ((4, 2), wp.vec2d, DtypeError, "of float32 cannot hold vec2d, which is made of float64; cast"),
        ((4,), wp.int32, DtypeError, "of float32 cannot hold int32"),
        ((4,), float, None, None),
        ((1, 1, 1, 1, 2, 2), wp.mat22, None, None),
    ],
)
def test_arrays_that_do_not_fit(shape, dtype, error, message):
    if error is None:  # the limits themselves
        jaxinfo_to_warpinfo(struct(shape), dtype=dtype)
        return
    with pytest.raises(error, match=message):
        jaxinfo_to_warpinfo(struct(shape), dtype=dtype)


@pytest.mark.parametrize(
    ("info", "shape", "error", "message"),
    [
        (wp.array[float], None, ArgumentError, "is an annotation, which has no extents; give shape="),
        (wp.array(dtype=float, ndim=1), None, ArgumentError, "give shape="),
        (wp.array2d[float], 3, ArgumentError, r"has 2 dimensions, and the shape given is \(3,\)\."),
        (wp.array[wp.vec3], (4, 3), ArgumentError, r"has 1 dimension, .*without the \(3,\) of its elements"),
        (wp.array[float], (-1,), ArgumentError, r"shape given is \(-1,\); expected a non-negative integer"),
        (wp.array[float], 3.0, ArgumentError, r"3\.0; expected a non-negative integer"),
        (wp.array[float], "n", ArgumentError, "'n'; expected"),
        (wp.array(dtype=Particle), 3, DtypeError, "Particle is not a type of numbers that JAX has.*fields of a struct"),
        (wp.array[Any], 3, DtypeError, "overload of a generic kernel"),
        (float, 3, InputError, "neither a Warp array nor an annotation of one"),
        (wp.array, 3, InputError, "neither a Warp array nor an annotation of one"),
    ],
)
def test_annotations_that_say_too_little(info, shape, error, message):
    with pytest.raises(error, match=message):
        warpinfo_to_jaxinfo(info, shape)


def test_import_and_use_neither_initialise_warp_nor_print():
    code = """
import jax, jax.numpy as jnp, warp as wp
from xlakernel.warp import _types
info = jax.ShapeDtypeStruct((3, 2), jnp.float32)
_types.warpinfo_to_jaxinfo(_types.jaxinfo_to_warpinfo(info, dtype=wp.vec2), 3)
print("quiet", flush=True)
wp.init()
"""
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    silent, _, after = (done.stdout + done.stderr).partition("quiet\n")
    assert silent == ""
    assert "Warp" in after  # it would have been seen
