"""Which kernel a call runs: who beats whom, in which thread, on which platform."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest

from xlakernel.core import operators, use_backend
from xlakernel.core.errors import BackendNotFoundError, UnknownPlatformError, XLAKernelError

ONE = jnp.ones(())


@pytest.fixture
def op(choices):
    return choices


@pytest.fixture
def run(choices, chosen):
    """Return a function that calls the operator and returns the backend that ran."""
    return lambda backend=None: chosen(lambda x: choices(x, outs=ONE, backend=backend))


def test_each_choice_beats_the_next(op, run):
    assert run() == "a"
    op.set_default("cpu", "b")
    assert run() == "b"
    with use_backend("c"):
        assert run() == "c"
        assert run(backend="d") == "d"
        assert run(backend="a") == "a"
    assert run() == "b"
    assert run(backend="d") == "d"


def test_the_innermost_context_wins(run):
    with use_backend("b"):
        with use_backend("c"):
            assert run() == "c"
            with use_backend("b"):
                assert run() == "b"
            assert run() == "c"
        assert run() == "b"
    assert run() == "a"


def test_a_context_ends_with_its_error(run):
    with pytest.raises(ZeroDivisionError), use_backend("b"):
        raise ZeroDivisionError
    assert run() == "a"


def test_a_context_is_for_the_platforms_that_it_names(run):
    with use_backend(gpu="b"):
        assert run() == "a"
        with use_backend(cpu="c"):
            assert run() == "c"
            with use_backend(tpu="d", cpu="d"):
                assert run() == "d"
    with use_backend("b", cpu="c"):
        assert run() == "c"
    with use_backend("b"), use_backend(gpu="c"):
        assert run() == "b"


@pytest.mark.parametrize("ask", [lambda: use_backend(), lambda: use_backend(3), lambda: use_backend(cpu=3)])
def test_invalid_contexts_are_refused(ask):
    with pytest.raises(TypeError, match="use_backend: expected a backend's name, or platform=name") as caught, ask():
        pass
    assert isinstance(caught.value, XLAKernelError)


def test_a_context_for_an_unknown_platform_is_refused(run):
    with (
        pytest.raises(UnknownPlatformError, match=r"use_backend: unknown platform 'cuda'.*'gpu'"),
        use_backend(cuda="a"),
    ):
        pass
    assert run() == "a"


@pytest.mark.parametrize("choose", [lambda op: use_backend("z"), lambda op: use_backend(cpu="z")])
def test_a_missing_backend_is_an_error_that_lists_the_others(op, choose, run):
    with pytest.raises(
        BackendNotFoundError, match=r"no 'z' kernel for platform 'cpu'; registered: \['a', 'b', 'c', 'd'\]"
    ):
        run(backend="z")
    with choose(op), pytest.raises(BackendNotFoundError, match=r"registered: \['a', 'b', 'c', 'd'\].*use_backend"):
        run()
    assert run() == "a"


def test_a_missing_backend_of_another_platform_names_that(choices):
    choices.def_kernel("only_gpu", "gpu", lambda outs, **_: lambda x: x)
    with pytest.raises(BackendNotFoundError, match=r"platform 'cpu'; .* It has one for \['gpu'\]; jax\.devices\(\)"):
        choices(ONE, outs=ONE, backend="only_gpu")


def test_the_default_that_the_message_advises_can_be_set(choices, run):
    with pytest.raises(BackendNotFoundError, match=re.escape(f"operators()[{choices.name!r}].set_default('cpu', ...)")):
        run(backend="z")
    operators()[choices.name].set_default("cpu", "b")
    assert run() == "b"


@pytest.mark.parametrize("backend", ["", 0, False, 3, ("a",), ["a"]], ids=repr)
def test_a_backend_that_is_no_name_is_never_passed_over(op, backend):
    with pytest.raises(XLAKernelError, match=r"\['a', 'b', 'c', 'd'\]|expected a"):
        op(ONE, outs=ONE, backend=backend)


def test_an_empty_name_in_a_context_is_never_passed_over(run):
    with pytest.raises(XLAKernelError), use_backend(""):
        run()


def test_a_missing_backend_is_likened_to_others(op):
    op.def_kernel("numba", "cpu", lambda outs: lambda x: x)
    with pytest.raises(BackendNotFoundError, match=r"Did you mean 'numba'\? Import the package that registers it, if"):
        op.entry("cpu", "numbaa")


# Threads.


def test_a_context_is_its_threads_own(run):
    inside, together = threading.Event(), threading.Barrier(2)

    def other():
        assert inside.wait(10)
        before = run()
        with use_backend("c"):
            together.wait(10)
            return before, run()

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(other)
        with use_backend("b"):
            inside.set()
            together.wait(10)
            assert run() == "b"
        assert found.result(10) == ("a", "c")


def test_a_default_is_every_threads(op, run, chosen):
    f = jax.jit(lambda x: op(x, outs=x))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(chosen, f).result(10) == "a"
        op.set_default("cpu", "b")
        assert pool.submit(chosen, f).result(10) == "b"
        pool.submit(op.set_default, "cpu", "c").result(10)
    assert chosen(f) == run() == "c"


def test_threads_that_switch_at_once_each_get_their_own(op, chosen):
    f = jax.jit(lambda x: op(x, outs=x))
    together = threading.Barrier(4)

    def work(backend):
        together.wait(10)
        found = set()
        for _ in range(20):
            with use_backend(backend):
                found.add(chosen(f))
        return found

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, "abcd")) == [{backend} for backend in "abcd"]


# Several platforms.


def lower(f, *platforms):
    return jax.jit(f).trace(ONE).lower(lowering_platforms=platforms)


def test_one_program_for_two_platforms(op, made):
    def f(x):
        return op(x, outs=x)

    text = lower(f, "cpu", "cuda").as_text()
    assert "platform_index" in text
    assert made == ["a", "a"]
    with use_backend(gpu="b"):
        lower(f, "cpu", "cuda")
    assert sorted(made[2:]) == ["a", "b"]
    op.set_default("gpu", "c")
    lower(f, "cuda")
    assert made[4:] == ["c"]


def test_a_backend_that_one_of_two_platforms_lacks(op):
    with pytest.raises(BackendNotFoundError, match=r"no 'd' kernel for platform 'gpu'; registered: \['a', 'b', 'c'\]"):
        lower(lambda x: op(x, outs=x, backend="d"), "cpu", "cuda")
    with use_backend(cpu="d"):
        lower(lambda x: op(x, outs=x), "cpu", "cuda")


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_both_vendors_gpus_run_the_gpu_kernel(op, platform, made):
    with use_backend(gpu="c"):
        lower(lambda x: op(x, outs=x), platform)
    assert made == ["c"]


def test_a_platform_without_kernels(op):
    with pytest.raises(
        BackendNotFoundError, match=r"no kernel for platform 'tpu'; there are kernels for \['cpu', 'gpu'\]"
    ):
        lower(lambda x: op(x, outs=x), "tpu")


def test_the_first_backend_stays_the_first(op):
    op.set_default("cpu", "b")
    assert op.first_backend("cpu") == "a"
    assert op.first_backend("tpu") is None
