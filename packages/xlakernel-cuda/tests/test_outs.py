"""Outputs as a dictionary, bound by the names of the parameters, and kernels without outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import cuda

from xlakernel.core.errors import LaunchError, OutputSpecError
from xlakernel.cuda import numba_cuda_callable, numba_cuda_kernel

# Numba thinks that small launches are not worth it.
pytestmark = pytest.mark.filterwarnings("ignore:.*Grid size")

Struct = jax.ShapeDtypeStruct
X = np.arange(3, dtype=np.float32)


@cuda.jit
def parts(x, top, base, shift):
    i = cuda.grid(1)
    if i < x.size:
        top[i] = x[i] + 1
        base[i] = shift >> 32


def by_name(x):
    return {"top": x, "base": Struct(x.shape, jnp.uint32)}


def launch(x, top, base, shift, stream):
    parts[1, x.size, stream](x, top, base, shift)


WRAPPERS = {
    "kernel": lambda outs, **options: numba_cuda_kernel(parts, outs, launch_dims=3, **options),
    "callable": lambda outs, **options: numba_cuda_callable(launch, outs, **options),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_any_other_dictionary_is_refused(wrap):
    found = jax.eval_shape(lambda x: wrap(by_name)(x, shift=1), X)
    assert (found["top"].dtype, found["base"].dtype) == (jnp.float32, jnp.uint32)
    for outs in ({"top": X, "bottom": X}, ({"top": X}, X), {"x": X, "top": X}):
        with pytest.raises(OutputSpecError, match=r"outs has a dictionary with the keys .*\['top', 'base'\]"):
            jax.eval_shape(lambda x, outs=outs: wrap(outs)(x, shift=1), X)


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_no_outputs_without_a_side_effect_are_refused(wrap):
    with pytest.raises(OutputSpecError, match=r"outs describes no output.*has_side_effect=True"):
        wrap(())
    with pytest.raises(OutputSpecError, match="outs describes no output"):
        jax.eval_shape(lambda x: wrap(lambda x: ())(x, shift=1), X)


def test_an_exception_of_a_launch_function_names_its_arguments():
    run = numba_cuda_kernel(parts, by_name, launch_dims=lambda x: x.sum())
    with pytest.raises(LaunchError, match=r"parts: the function launch_dims raised AttributeError.*ShapeDtypeStruct"):
        jax.eval_shape(lambda x: run(x, shift=1), X)


@pytest.mark.gpu
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_dictionary_is_bound_by_name(wrap):
    """And unsigned integers of 64 bits are scalars."""
    found = jax.jit(lambda x: wrap(by_name)(x, shift=2**63))(X)
    np.testing.assert_array_equal(found["top"], X + 1)
    np.testing.assert_array_equal(found["base"], [2**31] * 3)
