"""Faults of batches that `check_kernel` finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_batching import custom_vmap

X = np.linspace(0.5, 2.5, 5, dtype=np.float32)
Y = np.linspace(-1, 1, 5, dtype=np.float32)


def with_rule(rule):
    """Return a cumulative sum that *rule* batches, given the size, which inputs are batched, and the inputs."""

    @custom_vmap
    def fn(x, y):
        return jnp.cumsum(x) + y

    @fn.def_vmap
    def batch(size, batched, x, y):
        return rule(size, batched, x, y), True

    return fn


def right(size, batched, x, y):
    return jax.vmap(lambda x, y: jnp.cumsum(x) + y, [0 if own else None for own in batched], axis_size=size)(x, y)


def neighbour(size, batched, x, y):
    return jnp.roll(right(size, batched, x, y), 1, axis=0)


def last_element_of_the_last_slice(size, batched, x, y):
    out = right(size, batched, x, y)
    return out.at[-1, -1].add(1) if size else out


def only_first_of_unbatched(size, batched, x, y):
    out = right(size, batched, x, y)
    return out if all(batched) else out.at[:, 2].set(0)


def wrong_for_one(size, batched, x, y):
    return right(size, batched, x, y) + (size == 1)


def wrong_for_none(size, batched, x, y):
    return right(size, batched, x, y) if size else jnp.zeros((0, 7))


@pytest.mark.parametrize(
    ("check", "rule", "text"),
    [
        ("vmap_first_axis", neighbour, "slice 0 of the batch, element (0,)"),
        ("vmap_first_axis", last_element_of_the_last_slice, "slice 2 of the batch, element (4,)"),
        ("vmap_last_axis", neighbour, "slice 0 of the batch"),
        ("vmap_nested", only_first_of_unbatched, "in_axes (0, None) of (None, 0): output"),
        ("vmap_sizes", wrong_for_one, "a batch of 1: "),
        ("vmap_sizes", wrong_for_none, "a batch of 0: output is float32[0, 7], expected float32[0, 5]"),
        ("grad_vmap", neighbour, "slice "),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_wrong_batches(assert_caught, assert_passes, check, rule, text):
    make = broken_gradient if check == "grad_vmap" else with_rule
    assert_caught(check, text, make(rule), X, Y)
    assert_passes(check, make(right), X, Y)


def broken_gradient(rule):
    """Return a product whose gradient is right for one call and batched by *rule*."""
    cumulate = with_rule(rule)

    @jax.custom_vjp
    def fn(x, y):
        return x * y

    fn.defvjp(
        lambda x, y: (x * y, (x, y)),
        lambda kept, ct: (ct * kept[1], ct * (cumulate(kept[0], kept[1]) - jnp.cumsum(kept[0]) - kept[1] + kept[0])),
    )
    return fn


def test_a_batch_along_the_last_axis_only_is_wrong(new_primitive, assert_caught, assert_passes):
    wrong, right = new_primitive(lambda axis: 0), new_primitive(lambda axis: axis)
    x = np.arange(9, dtype=np.float32).reshape(3, 3) + 1  # so that the shapes hide it
    assert_passes("vmap_first_axis", wrong, x)
    assert_caught("vmap_last_axis", "of the batch, element", wrong, x)
    assert_passes("vmap_last_axis", right, x)


def test_equal_slices_need_samples(run_check, assert_passes):
    whole = np.arange(5)
    for check, fn, x in (
        ("vmap_first_axis", jnp.cumsum, whole),
        ("vmap_last_axis", jnp.sign, X),
        ("vmap_nested", jnp.sign, X),
    ):
        outcome = run_check(check, fn, x)
        assert outcome.outcome == "not tried"
        assert outcome.detail.startswith("every slice of the batch has the same result")
        assert "samples=[" in outcome.detail
    assert_passes("vmap_first_axis", jnp.cumsum, whole, samples=[(whole[::-1],), (whole * 2,)])


def test_integers_that_are_the_same_in_all_slices_are_named(run_check, assert_caught):
    @custom_vmap
    def take(x, rows):
        return x[rows]

    @take.def_vmap
    def batch(size, batched, x, rows):  # takes the rows of the first slice in all slices
        first = rows[0] if batched[1] else rows
        return jax.vmap(lambda x: x[first], 0 if batched[0] else None, axis_size=size)(x), True

    rows = np.array([2, 0, 1])
    outcome = run_check("vmap_first_axis", take, X, rows)
    assert outcome.outcome == "passed"
    assert outcome.detail.startswith("input 1 is the same in all slices; samples=[")
    assert_caught("vmap_first_axis", "element", take, X, rows, samples=[(X, rows[::-1]), (2 * X, rows)])
    assert run_check("vmap_first_axis", lambda x, y: x + y, X, Y).detail == ""


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_batch_of_one_input_alone(assert_caught, number):
    function = custom_vmap(lambda x, y, z: x * y + z)

    @function.def_vmap
    def _(size, batched, *operands):
        operands = [v if b else jnp.broadcast_to(v, (size, *v.shape)) for v, b in zip(operands, batched, strict=True)]
        if sum(batched) == 1 and batched[number]:
            operands = [jnp.broadcast_to(v[:1], v.shape) for v in operands]
        return operands[0] * operands[1] + operands[2], True

    axes = tuple(0 if i == number else None for i in range(3))
    assert_caught("vmap_nested", f"in_axes {axes}: ", function, *(np.linspace(k, k + 1, 4) for k in (1, 2, 3)))
