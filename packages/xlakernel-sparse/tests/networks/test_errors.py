"""Wrong arguments: the error says what, got, allowed."""

from __future__ import annotations

import random
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from models import PARAMETERS, State, balanced, full_matrix, integrate, start
from rules import RULES

from xlakernel.core.errors import (
    ArgumentError,
    CompileError,
    DtypeError,
    InputError,
    KernelTypeError,
    ShapeError,
)
from xlakernel.sparse import CSR
from xlakernel.sparse.networks import Network, Population, Projection, Record, Trace, uniform

MATRIX = full_matrix(np.ones((4, 4), np.float32))
TINY = CSR(
    (np.float32([1e-36, 5e-37, 1e-36, 1e-36]), np.arange(4, dtype=np.int32), np.arange(5, dtype=np.int32)), shape=(4, 4)
)
POPULATION = Population(integrate, 4)


class Current(NamedTuple):
    """Inputs that are given."""

    current: jax.Array


def projection(**changed):
    return Projection(MATRIX, 1, "excitatory")._replace(**changed)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"delay": 0}, ArgumentError, "projection 0: a delay is 0; allowed: at least 1"),
        ({"delay": 2**32 + 1}, ArgumentError, "a delay is 4294967297; allowed: from 1 to"),
        (
            {"matrix": TINY},
            ArgumentError,
            "the weights of receptor 0 are up to",
        ),
        # The reciprocal of the unit is not a normal number: the weights became 0.
        (
            {"matrix": MATRIX * np.float32(9e37)},
            ArgumentError,
            "one unit would be 8.9.*e[+]37; allowed: 1.1.*e-38 to 8.5",
        ),
        ({"matrix": MATRIX * np.float32(3e38)}, ArgumentError, "the weights of receptor 0 are up to"),
        ({"delay": np.full(16, -3)}, ArgumentError, "projection 0: a delay is -3"),
        ({"delay": 1.5}, DtypeError, "projection 0: the delay is 1.5; allowed: whole steps"),
        ({"delay": np.ones(3, int)}, ShapeError, r"the delay has the shape \(3,\); allowed: \(\) or \(16,\)"),
        ({"matrix": MATRIX * np.float32(np.nan)}, ArgumentError, "projection 0: a weight is NaN or infinite"),
        ({"matrix": MATRIX * np.float32(np.inf)}, ArgumentError, "projection 0: a weight is NaN or infinite"),
        ({"matrix": np.ones((4, 4))}, InputError, "the matrix is a ndarray; allowed: a CSR"),
        ({"matrix": MATRIX.astype(jnp.complex64)}, DtypeError, "weights of dtype complex64"),
        ({"source": slice(0, 3)}, ShapeError, r"the matrix has the shape \(4, 4\); allowed: \(3, 4\)"),
        ({"source": slice(0, 5)}, ArgumentError, r"source is slice\(0, 5, None\); allowed"),
        ({"target": "nowhere"}, ArgumentError, "target is 'nowhere'; allowed"),
        ({"receptor": "not a name"}, ArgumentError, "the receptor of projection 0 is 'not a name'"),
    ],
)
def test_wrong_projections(changed, error, message):
    with pytest.raises(error, match=message):
        Network(POPULATION, [projection(**changed)])


def test_indptr_that_decreases():
    matrix = CSR((jnp.ones(3), jnp.zeros(3, jnp.int32), jnp.array([0, 2, 1, 2, 3])), shape=(4, 4), check=False)
    with pytest.raises(ArgumentError, match="projection 0: indptr of the matrix does not rise"):
        Network(POPULATION, [projection(matrix=matrix)])


def test_targets_out_of_range():
    indices = jnp.array([0, 7], jnp.int32)
    matrix = CSR((jnp.ones(2), indices, jnp.array([0, 1, 2, 2, 2])), shape=(4, 4), check=False)
    with pytest.raises(ArgumentError, match="projection 0: a target is 7; allowed: 0 to 3"):
        Network(POPULATION, [projection(matrix=matrix)])


@pytest.mark.parametrize(
    ("populations", "error", "message"),
    [
        ({}, ArgumentError, "there are no populations"),
        (integrate, KernelTypeError, "the population is a CPUDispatcher; allowed: a Population"),
        (Population(integrate.py_func, 4), KernelTypeError, "allowed: one that is decorated with numba.njit"),
        ({"": POPULATION, "b": POPULATION}, ArgumentError, "names of the populations are"),
        ({"a": Population(integrate, 0)}, ArgumentError, "population 'a' has the size 0"),
    ],
)
def test_wrong_populations(populations, error, message):
    with pytest.raises(error, match=message):
        Network(populations, [projection()])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"blocks": 0}, "blocks is 0"), ({"blocks": 9}, "blocks is 9"), ({"weight_bits": 8}, "weight_bits is 8")],
)
def test_wrong_options(options, message):
    with pytest.raises(ArgumentError, match=message):
        Network(POPULATION, [projection()], **options)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"steps": 0}, ArgumentError, "steps is 0; allowed: an integer of at least 1"),
        ({"steps": 2.5}, ArgumentError, "steps is 2.5"),
        ({"parameters": {"leak": 1}}, ArgumentError, "parameters"),
        ({"parameters": PARAMETERS._replace(leak=jnp.ones(3))}, ShapeError, r"parameters.leak: shape \(3,\)"),
        ({"parameters": PARAMETERS._replace(leak=1j)}, DtypeError, "parameters.leak: a complex; allowed"),
        ({"parameters": PARAMETERS._replace(leak=np.array("a"))}, DtypeError, "parameters.leak: <U1; allowed"),
        ({"parameters": PARAMETERS._replace(leak=2**31)}, DtypeError, "an integer that does not fit int32; allowed"),
        ({"parameters": PARAMETERS._replace(leak=np.int64(2**40))}, DtypeError, "an integer that does not fit int32"),
        ({"parameters": PARAMETERS._replace(leak=np.ones((), ">f4"))}, DtypeError, "not in native byte order"),
        ({"parameters": PARAMETERS._replace(leak=jax.random.key(0))}, DtypeError, "parameters.leak: key<fry>; allowed"),
        ({"record": Record(spikes=-1)}, ArgumentError, "record.spikes is -1"),
        ({"record": Record(counts=np.zeros(3, int))}, ArgumentError, "record.counts is of shape"),
        (
            {"record": Record(counts=np.full(60, -2))},
            ArgumentError,
            r"groups from -2 to -2; allowed: -1 to 2\*\*31 - 2",
        ),
        ({"record": Record(counts=np.arange(60) + 2**31)}, ArgumentError, "groups from 2147483648 to"),
        ({"record": Record(trace=Trace("u", [0]))}, ArgumentError, r"a trace of \('u',\); allowed: .*'v'"),
        ({"record": Record(trace=Trace("v", [60]))}, ArgumentError, "integers from 0 to 59"),
        ({"record": Record(trace=Trace("v", np.zeros(0, int)))}, ArgumentError, "not empty"),
        ({"record": Record(trace=Trace("v", [0], every=0))}, ArgumentError, "every 0 steps"),
        ({"record": Record(trace=Trace("v", [0], every=2))}, ArgumentError, "every 2 steps in 3; allowed: a divisor"),
        ({"record": Record(trace=["v"])}, ArgumentError, "record.trace is a list; allowed: a Trace"),
        ({"record": ["v"]}, ArgumentError, "record is a list; allowed: a Record"),
        ({"parameters": None}, CompileError, r"It reads '\w+' of parameters or inputs that are not given"),
        (
            {"inputs": PARAMETERS._replace(**dict.fromkeys(PARAMETERS._fields, jnp.ones(3)))},
            CompileError,
            r"integrate has the parameters \(state, arrived, p, rng\); allowed: 5 with inputs",
        ),
        ({"state": start(60)}, ArgumentError, "the state is a State; allowed: a NetworkState"),
        ({"key": 0}, ArgumentError, r"key is 0; allowed: one key, such as jax.random.key\(0\)"),
        ({"key": jnp.zeros(7, jnp.uint32)}, ArgumentError, r"key is .*; allowed: one key"),
        ({"key": jax.random.split(jax.random.key(0), 3)}, ArgumentError, r"(?s)key is .*; allowed: one key"),
    ],
)
def test_wrong_runs(changed, error, message):
    network = balanced()
    arguments = {"state": network.initial(start(60)), "parameters": PARAMETERS, "steps": 3, **changed}
    with pytest.raises(error, match=message):
        network.run(**arguments)


@pytest.mark.parametrize(
    ("neurons", "error", "message"),
    [
        (start(30), ShapeError, r"neurons.v: shape \(30,\); allowed: \(\) or \(60,\)"),
        ({"v": 0.0}, ArgumentError, "neurons: a dict; allowed: a named tuple"),
        (None, ArgumentError, "neurons have no fields"),
    ],
)
def test_wrong_initial_states(neurons, error, message):
    with pytest.raises(error, match=message):
        balanced().initial(neurons)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda traced: Record(counts=traced), "record.counts is traced"),
        (lambda traced: Record(trace=Trace("v", traced)), "the neurons of a trace are traced"),
    ],
)
def test_what_is_recorded_is_known_when_the_run_is_traced(make, message):
    network = balanced()

    @jax.jit
    def run(traced):
        return network.run(network.initial(start(60)), PARAMETERS, steps=3, record=make(traced))

    with pytest.raises(ArgumentError, match=message):
        run(jnp.zeros(60, int))


def test_wrong_names_of_populations():
    network = Network({"cells": POPULATION}, [projection(), projection(receptor="inhibitory")])
    with pytest.raises(ArgumentError, match=r"neurons are \['cell'\]; allowed: a dictionary by population"):
        network.initial({"cell": start(4)})
    state = network.initial({"cells": start(4)})
    with pytest.raises(ArgumentError, match=r"record.trace is \['cell'\]; allowed: a dictionary of Trace"):
        network.run(state, PARAMETERS, steps=3, record=Record(trace={"cell": Trace("v", [0])}))
    with pytest.raises(ArgumentError, match=r"record.trace is a Trace; allowed: a dictionary of Trace"):
        network.run(state, PARAMETERS, steps=3, record=Record(trace=Trace("v", [0])))


@numba.njit
def takes_inputs(state, arrived, p, rng, inputs):
    return state, inputs.current > 0


def test_missing_inputs():
    network = Network(Population(takes_inputs, 4), [])
    with pytest.raises(CompileError, match=r"allowed: 4 without inputs of .* Give inputs in Network.run"):
        network.run(network.initial(start(4)), steps=3)


def test_missing_inputs_of_one_population():
    network = Network({name: Population(takes_inputs, 4) for name in "ab"}, [])
    state = network.initial({name: start(4) for name in "ab"})
    with pytest.raises(CompileError, match="Give inputs for 'b'"):
        network.run(state, steps=3, inputs={"a": Current(jnp.zeros(3))})


def test_state_of_another_network():
    network, other = balanced(), balanced(30)
    with pytest.raises(ShapeError, match=r"state\.pending has the shape"):
        network.run(other.initial(start(30)), PARAMETERS, steps=3)
    state = network.initial(start(60))
    with pytest.raises(DtypeError, match=r"state\.pending is of float32; allowed: an array of int32"):
        network.run(state._replace(pending=state.pending.astype(jnp.float32)), PARAMETERS, steps=3)


@numba.njit
def changes_kind(state, arrived, p, rng):
    return State(state.v, state.current, 0.5 * state.wait), False


@numba.njit
def returns_no_state(state, arrived, p, rng):
    return state.v, False


@numba.njit
def fires_a_number(state, arrived, p, rng):
    return state, 1.5


@numba.njit
def has_an_error(state, arrived, p, rng):
    return State(state.voltage, state.current, state.wait), False


@numba.njit
def draws(state, arrived, p, rng):
    return state, uniform(rng, 0) < np.float32(0.5)


@numba.njit
def number():
    return np.random.random()  # noqa: NPY002  # what the error is about


@numba.njit
def draws_without_key(state, arrived, p, rng):
    return state, number() < 0.5


@numba.njit
def draws_in_python(state, arrived, p, rng):
    return state, random.random() < 0.5


@numba.njit
def reads_another_receptor(state, arrived, p, rng):
    return state, arrived.exc > 0


@numba.njit
def changes_state(state, arrived, p, rng):
    state.v = state.v + 1
    return state, False


@numba.njit
def returns_two_types(state, arrived, p, rng):
    if state.wait > 0:
        return State(0.0, state.current, state.wait), False
    return state, True


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (changes_kind, "changes_kind returns float64 for wait, which is int32 in the state"),
        (returns_no_state, r"returns_no_state returns .*; allowed: \(State\(...\), fired\)"),
        (fires_a_number, "fires_a_number returns float64 for fired; allowed: a bool"),
        (has_an_error, r"has_an_error: Numba cannot compile it for state \(v: float32(.|\n)*voltage"),
        (draws, "draws: Numba cannot compile it for .* It draws random numbers: give a key to Network.run"),
        (draws_without_key, r"draws_without_key draws random numbers from np.random .* draw from rng: uniform"),
        (draws_in_python, "draws_in_python draws random numbers from np.random or random"),
        (reads_another_receptor, "reads 'exc', which is no field of arrived, whose fields are the receptors"),
        (has_an_error, "reads 'voltage', which is no field of State"),
        (changes_state, "changes_state: Numba cannot compile it .* return a new one"),
        (returns_two_types, r"returns_two_types: Numba cannot compile it .* write np.float32\(...\) around literals"),
    ],
)
def test_wrong_functions(function, message):
    network = Network(Population(function, 4), [projection()])
    with pytest.raises(CompileError, match=message):
        network.run(network.initial(start(4)), PARAMETERS, steps=3)


class Wrong(NamedTuple):
    v: jax.Array


def test_backend_without_a_reference():
    network = Network(POPULATION, [projection(), projection(receptor="inhibitory")])
    with pytest.raises(Exception, match=re.escape("needs Population(reference=...)")):
        network.run(network.initial(start(4)), PARAMETERS, steps=3, backend="jax")


def test_plastic_projections_of_too_many_sources_and_blocks():
    n = 40_000
    indptr = np.minimum(np.arange(n + 1, dtype=np.int32), 1)
    matrix = CSR((np.ones(1, np.float32), np.zeros(1, np.int32), indptr), shape=(n, n))
    one = projection(matrix=matrix, plasticity=RULES["pair"][0])
    with pytest.raises(ArgumentError, match="times 40000 blocks are 3200000002; allowed: fewer than 2"):
        Network(Population(integrate, n), [one, one], blocks=n)
