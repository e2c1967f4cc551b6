"""``backend="auto"``: calls that are not measured, and the side effects that a measurement avoids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from xlakernel.core import XLACustomKernel, auto_choices, debug_mode, tune
from xlakernel.core.errors import AutoBackendWarning, InputError
from xlakernel.core.measure import auto
from xlakernel.core.measure import race as racing

X = np.ones(5, np.float32)

pytestmark = pytest.mark.usefixtures("auto_folder")


@pytest.fixture
def op(alike):
    return alike


def test_the_arrays_are_left_alone(new_operator, register, speeds):
    def increase(x, out):
        for i in range(x.size):
            out[i] = x[i] + 1

    target = register(increase, [("float32", 1)], [("float32", 1)])
    op = new_operator()
    aliased = {"input_output_aliases": {0: 0}}
    op.def_kernel("a", "cpu", lambda outs: jax.ffi.ffi_call(target, outs[0], **aliased))
    op.def_kernel("b", "cpu", lambda outs: lambda x: x + 1)
    x, own = jnp.zeros(5), np.zeros(5, np.float32)
    for values in (x, own):
        for _ in range(2):
            np.testing.assert_array_equal(op(values, outs=x, backend="auto"), np.ones(5))
        np.testing.assert_array_equal(values, np.zeros(5))
    assert not x.is_deleted()
    assert auto_choices(op.name)[0].problems == {}


def test_an_array_that_was_donated_is_the_error_of_jax(op, measured):
    x = jnp.ones(5)
    x.delete()
    with pytest.warns(AutoBackendWarning), pytest.raises(RuntimeError, match="deleted"):
        op(x, outs=X, backend="auto")
    assert measured == []


def test_inputs_that_are_no_arrays_are_refused_first(op, measured):
    with pytest.raises(InputError, match="input 0 is 'x'"):
        op("x", outs=X, backend="auto")
    assert measured == []


def test_an_operator_with_side_effects_is_measured_on_request_only(new_name, ran, speeds, measured):
    op = auto_operator(new_name(), ran, has_side_effect=True)
    with pytest.warns(AutoBackendWarning, match="or with side effects"):
        op(X, outs=X, backend="auto")
    assert (ran, measured) == (["a"], [])
    (choice,) = tune(op, X, outs=X)
    assert (choice.backend, measured) == ("b", [op.name])
    ran.clear()
    op(X, outs=X, backend="auto")
    assert ran == ["b"]


def auto_operator(name, ran, **options):
    def kernel(backend, outs, x):
        def double(x):
            ran.append(backend)
            return 2 * np.asarray(x)

        return jax.pure_callback(double, outs[0], x)

    op = XLACustomKernel(name, **options)
    for backend in "ab":
        op.def_kernel(backend, "cpu", lambda outs, backend=backend: lambda x: kernel(backend, outs, x))
    return op


def test_nothing_is_measured_while_debugging(run, speeds, measured):
    with debug_mode():
        with pytest.warns(AutoBackendWarning):
            assert run(backend="auto") == "a"
        assert tune(run) == []
    run(backend="auto")
    with debug_mode():
        assert run(backend="auto") == "b"
    assert len(measured) == 1


def test_nothing_is_measured_without_jit(run, speeds, measured):
    with jax.disable_jit(), pytest.warns(AutoBackendWarning):
        assert run(backend="auto") == "a"
    run(backend="auto")
    with jax.disable_jit():
        assert run(backend="auto") == "b"
    assert len(measured) == 1


def test_nothing_is_measured_in_one_of_several_processes(run, speeds, measured, monkeypatch):
    run(backend="auto")
    monkeypatch.setattr(auto, "_are_several_processes", lambda: True)
    with pytest.warns(AutoBackendWarning, match="in several processes"):
        assert run(backend="auto") == "a"  # all must compile the same, and only one may have measured
    assert len(measured) == 1


def test_an_array_on_several_devices_takes_the_known_choice(op, made, speeds, measured):
    mesh = jax.sharding.Mesh(jax.devices("cpu")[:2], "d")
    x = jax.device_put(np.ones(6, np.float32), NamedSharding(mesh, PartitionSpec("d")))
    with pytest.warns(AutoBackendWarning, match="on several devices"):
        op(x, outs=x, backend="auto")
    assert (made, measured) == ([("cpu", "a")], [])
    op(X, outs=X, backend="auto")
    made.clear()
    np.testing.assert_array_equal(op(x, outs=x, backend="auto"), 2 * np.ones(6))
    assert (made, len(measured)) == ([("cpu", "b")], 1)


def test_a_call_on_a_mesh_is_not_measured(new_operator, measured, speeds):
    op = new_operator()
    for backend in "ab":
        op.def_kernel(backend, "cpu", lambda outs: lambda x: 2 * x)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:2])
    with jax.set_mesh(mesh), pytest.warns(AutoBackendWarning, match="on several devices"):
        jax.block_until_ready(op(X, outs=X, backend="auto"))
    op(X, outs=X, backend="auto")
    assert len(measured) == 1


def test_a_call_runs_where_its_arrays_are(op, run, speeds, measured):
    first, second, third = jax.devices("cpu")[:3]
    x = jax.device_put(X, second)
    assert op(x, outs=X, backend="auto").devices() == {second}
    with jax.default_device(third):
        assert op(X, outs=X, backend="auto").devices() == {third}
        assert op(x, outs=X, backend="auto").devices() == {second}
    assert op(X, outs=X, backend="auto").devices() == {first}
    assert len(measured) == 1


def test_settings_of_the_user_do_not_reach_the_measurement(op, monkeypatch):
    found = []

    def time(programs, pace):
        found.append((jax.config.jax_transfer_guard_device_to_host, jax.config.jax_disable_jit))
        return {backend: [1.0] for backend in programs}, {}

    monkeypatch.setattr(racing, "_time", time)
    x = jnp.ones(5)
    with jax.transfer_guard("disallow"):
        tune(op, x, outs=x)
    assert found == [("allow", False)]


def test_numbers_that_are_no_error_of_a_backend_are_measured(new_operator, measured):
    op = new_operator()
    for backend in "ab":
        op.def_kernel(backend, "cpu", lambda outs: lambda x: x + x)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        op(np.full(5, np.nan, np.float32), outs=X, backend="auto")
    op(X, outs=X, backend="auto")
    assert measured == [op.name]
    assert set(auto_choices(op.name)[0].seconds) == {"a", "b"}


def test_numbers_are_arrays(op, measured):
    for _ in range(2):
        assert op(3.0, outs=jax.ShapeDtypeStruct((), jnp.float32), backend="auto") == 6
    assert auto_choices(op.name)[0].call == "float32[] -> float32[]"
    assert len(measured) == 1
