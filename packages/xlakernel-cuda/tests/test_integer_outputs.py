"""Kernels with integer results in differentiated programs, and with side effects in batched branches, on a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose

from xlakernel.core.errors import SideEffectError
from xlakernel.cuda import numba_cuda_callable, numba_cuda_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*Grid size"),  # Numba thinks that small launches are not worth it
]

X = np.array([0.5, 2.0, -1.0], np.float32)
ROWS = np.stack([X, -X, 2 * X])
INDEX = jax.ShapeDtypeStruct((1,), np.int32)


@cuda.jit
def argmax(x, out):
    best = 0
    for i in range(x.size):
        if x[i] > x[best]:
            best = i
    out[0] = best


def launch(x, out, stream):
    argmax[1, 1, stream](x, out)


WAYS = {
    "kernel": lambda **options: numba_cuda_kernel(argmax, INDEX, launch_dims=1, **options),
    "callable": lambda **options: numba_cuda_callable(launch, INDEX, **options),
}


@pytest.mark.parametrize("wrap", WAYS.values(), ids=WAYS)
def test_an_index_is_a_constant_to_a_derivative(wrap):
    run = wrap()
    found, expected = (lambda x: x[run(x)[0]] ** 2), (lambda x: x[jnp.argmax(x)] ** 2)
    assert_allclose(jax.grad(found)(X), jax.grad(expected)(X))
    assert_allclose(jax.jit(jax.vmap(jax.grad(found)))(ROWS), jax.vmap(jax.grad(expected))(ROWS))
    looped = [
        jax.grad(lambda x, pick=pick: jax.lax.scan(lambda c, row: (c, pick(c * row)), x, ROWS)[1].sum())
        for pick in (found, expected)
    ]
    assert_allclose(looped[0](X), looped[1](X), rtol=1e-6)


@pytest.mark.parametrize("wrap", WAYS.values(), ids=WAYS)
def test_a_side_effect_in_a_batch_of_branches_is_refused(wrap):
    run = wrap(has_side_effect=True)
    with pytest.raises(SideEffectError, match=r"argmax|launch"):
        jax.vmap(lambda x: jax.lax.cond(x[0] > 0, lambda: run(x), lambda: jnp.zeros(1, jnp.int32)))(ROWS)
