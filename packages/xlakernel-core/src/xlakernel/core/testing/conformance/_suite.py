"""Tests of a backend: the checks of `check_kernel` over a table of kernels."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ...measure.comparison import Tolerance, compare
from .._report import Outcome
from .._subject import Subject, enable_x64
from .._table import CHECKS, NAMES, run_check
from ._cases import CASES, USUAL, WIDE, Case, Shapes

_OF_VALUES = ("eager", "written")  # checks for each dtype and shape
_BATCHED = ("coupled", "matrix_product", "outer_product", "scalars")  # cases with dependent elements or several inputs
_each_case = pytest.mark.parametrize("name", USUAL)


class KernelConformance:
    """Tests of the kernels of a backend; subclass it as ``TestMyBackend``.

    `build` returns the kernels of these cases, which `CASES` describes: ``elementwise``, ``coupled``, ``reduction``,
    ``total``, ``matrix_product``, ``outer_product``, ``several_outputs``, ``no_inputs``, ``scalars``,
    ``static_scalar``, ``in_place``, ``gather`` and ``raises``.

    Attributes:
      backend: the backend's name, for messages.
      platform: the JAX platform that the kernels run on.
      unsupported: case, dtype, ``"case/dtype"``, check or family of checks → the reason why it is unsupported.

    Example:
      >>> from xlakernel.core.testing.conformance import KernelConformance
      >>> class TestMine(KernelConformance):
      ...     backend = "mine"
      ...     unsupported = {"complex64": "the compiler has no complex numbers"}
      ...     def build(self, case, outs, **options):
      ...         return my_wrapper(my_kernels[case.name], outs, **options)
    """

    backend: ClassVar[str] = ""
    platform: ClassVar[str] = "cpu"
    unsupported: ClassVar[Mapping[str, str]] = {}

    def build(self, case: Case, outs: Callable[..., Any], **options: Any) -> Callable[..., Any] | None:
        """Return the kernel of *case*, written in the backend's language and wrapped.

        It may return None for a case that `unsupported` names; None for any other case fails the tests.

        Args:
          case: the case, with its computation (`Case.about`) and the order of its parameters.
          outs: a function that returns the structs (shapes and dtypes) of the outputs for the inputs.
          **options: ``input_output_aliases`` if the case has aliases, and ``reference`` if derivatives are tested: to
            be passed to the wrapper.
        """
        raise NotImplementedError(f"{type(self).__name__} must define build(case, outs, **options).")

    @pytest.fixture(autouse=True)
    def _on_the_platform(self) -> Iterator[None]:
        before = jax.config.jax_default_device  # type: ignore[attr-defined]
        jax.config.update("jax_default_device", jax.devices(self.platform)[0])  # in every thread
        yield
        jax.config.update("jax_default_device", before)

    def test_unsupported_has_names_and_reasons(self) -> None:
        """Every key of `unsupported` names a case, a dtype or a check, and has a reason."""
        dtypes = {dtype for case in CASES.values() for dtype in case.dtypes}
        pairs = {f"{case.name}/{dtype}" for case in CASES.values() for dtype in case.dtypes}
        for name, reason in self.unsupported.items():
            assert name in {*CASES, *dtypes, *pairs, *NAMES}, f"unsupported has {name!r}, which names nothing"
            assert isinstance(reason, str) and reason.strip(), f"unsupported[{name!r}] has no reason"

    @pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name in USUAL for dtype in CASES[name].dtypes])
    def test_values(self, name: str, dtype: str) -> None:
        """Every dtype, rank and zero size; every element is written."""
        for shapes in CASES[name].shapes:
            with contextlib.ExitStack() as stack:
                if dtype in WIDE:
                    stack.enter_context(enable_x64())
                is_empty = any(0 in shape for shape in shapes)
                for check in (*_OF_VALUES, *(["jit", "vmap_first_axis"] if is_empty else [])):
                    self._outcome(name, check, dtype=dtype, shapes=shapes)

    @_each_case
    @pytest.mark.parametrize("check", [name for name in CHECKS if name not in _OF_VALUES])
    def test_check(self, name: str, check: str) -> None:
        """Every transformation; derivatives up to the second order."""
        outcome = self._outcome(name, check)
        if outcome.outcome == "not tried":
            pytest.skip(f"{self.backend} {name}: {check}: {outcome.detail}")

    def test_a_donated_alias_keeps_its_memory(self) -> None:
        """An output that aliases a donated input is in the input's memory, in a single call and in a batch."""
        run = self._function("in_place")
        for shape, batched in (((1000,), run), ((10, 100), jax.vmap(run))):
            acc, x = jnp.zeros(shape), jnp.ones(shape)
            before = acc.unsafe_buffer_pointer()
            out = jax.jit(batched, donate_argnums=0)(acc, x)
            assert out.unsafe_buffer_pointer() == before
            np.testing.assert_array_equal(out, np.ones(shape))

    def test_errors_reach_the_caller(self) -> None:
        """The exception of a kernel reaches the caller, and the next call is right."""
        run = self._function("raises")
        good = np.arange(5, dtype=np.float32)
        bad = good - 3
        failing: dict[str, Callable[[], Any]] = {
            "eager": lambda: run(bad),
            "jit": lambda: jax.jit(run)(bad),
            "vmap": lambda: jax.vmap(run)(np.stack([good, bad, good])),
            "scan": lambda: jax.lax.scan(lambda c, x: (c, run(x)), 0, np.stack([good, bad]))[1],
        }
        for how, call in failing.items():
            with pytest.raises(Exception, match="negative input"):
                jax.block_until_ready(call())
            np.testing.assert_array_equal(run(good), good, err_msg=f"after an error, {how}")
        np.testing.assert_array_equal(jax.vmap(run)(np.stack([good, good])), [good, good])

    @pytest.mark.parametrize("name", _BATCHED)
    @pytest.mark.parametrize("sizes", [(3,), (2, 3), (3, 1, 2), (2, 0)], ids=str)
    def test_any_batch(self, name: str, sizes: tuple[int, ...]) -> None:
        """Nested vmap, each level with its own size and with its own random choice of batched inputs."""
        rng = np.random.default_rng(sizes)
        run, subject = self._function(name), self._subject(name, samples=27)
        count = len(subject.inputs)
        axes: list[list[int | None]] = [[None if rng.random() < 0.5 else 0 for _ in range(count)] for _ in sizes]
        for level in axes:
            level[rng.integers(count)] = 0
        for inner in reversed(axes):
            run = jax.vmap(run, tuple(inner))
        stacked, expected = subject.batch(sizes, axes)
        got = run(*map(jnp.asarray, stacked))
        if expected is None:
            assert got.shape[: len(sizes)] == tuple(sizes)
        else:
            compare(got, expected, Tolerance(), batch=len(sizes))

    def _outcome(self, name: str, check: str, *, dtype: str = "", shapes: Shapes | None = None) -> Outcome:
        """Run a check of `check_kernel` on a case. Skip the test if it is unsupported; fail if the check fails."""
        dtype = dtype or CASES[name].dtypes[0]
        self._skip_unsupported(name, dtype, f"{name}/{dtype}", check, CHECKS[check].family)
        subject = self._subject(name, dtype, shapes, differentiable=check.startswith("grad"))
        outcome = run_check(CHECKS[check], subject)
        if outcome.outcome == "failed":
            pytest.fail(f"{subject.name}: {check}: {outcome.detail}", pytrace=False)
        return outcome

    def _subject(
        self,
        name: str,
        dtype: str = "",
        shapes: Shapes | None = None,
        *,
        samples: int = 4,
        differentiable: bool = False,
    ) -> Subject:
        case, run = CASES[name], self._function(name, differentiable=differentiable)
        return Subject(
            f"{self.backend} {name}",
            functools.partial(run, **case.static),
            functools.partial(case.reference, np, **case.static),
            tuple(case.draw(seed, dtype, shapes) for seed in range(samples)),
            Tolerance(),
            grad_order=2,
        )

    def _skip_unsupported(self, *names: str) -> None:
        for name in names:
            if name in self.unsupported:
                pytest.skip(f"{self.backend}: {name}: {self.unsupported[name]}")

    def _function(self, name: str, *, differentiable: bool = False) -> Callable[..., Any]:
        self._skip_unsupported(name)
        case = CASES[name]
        options: dict[str, Any] = {"input_output_aliases": dict(case.aliases)} if case.aliases else {}
        if differentiable:
            options["reference"] = functools.partial(_in_jax, case)
        run = self.build(case, case.outs, **options)
        if run is None:
            pytest.fail(
                f"{self.backend} has no kernel for the case {name!r}, {name}({case.parameters}): {case.about}. Write "
                f'it, or give the reason why it is impossible: unsupported = {{"{name}": "the reason"}}.',
                pytrace=False,
            )
        return run


def _in_jax(case: Case, *inputs: Any, **static: Any) -> Any:
    """Compute the case's reference in JAX, in the dtypes of its outputs."""
    results = case.reference(jnp, *inputs, **static)
    return jax.tree.map(lambda result, out: result.astype(out.dtype), results, case.outs(*inputs))
