"""The report and the arguments of `check_kernel`."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.command.install import install_command
from xlakernel.core import XLACustomKernel, use_backend
from xlakernel.core.errors import ArgumentError, KernelCheckError, MissingDependencyError
from xlakernel.core.testing import KernelReport, Outcome, check_kernel
from xlakernel.core.testing._table import CHECKS

pytestmark = pytest.mark.slow

X = np.linspace(0.5, 2.5, 5, dtype=np.float32)
Y = np.linspace(-1, 1, 5, dtype=np.float32)


@jax.custom_jvp
def misdeclared(x):
    return x * x


misdeclared.defjvp(lambda primals, tangents: (misdeclared(*primals), 3 * primals[0] * tangents[0]))


def test_every_failure_is_listed_with_a_remedy(only):
    with pytest.raises(KernelCheckError) as caught:
        check_kernel(misdeclared, X, skip=only("eager", "grad_forward", "grad_reverse"))
    error = caught.value
    assert isinstance(error, AssertionError) and isinstance(error.report, KernelReport)
    assert str(error) == str(error.report)
    lines = str(error).splitlines()
    assert lines[0] == f"misdeclared: of {len(CHECKS)} checks 0 passed, 2 failed, {len(CHECKS) - 2} not tried."
    assert [line.split()[0] for line in lines if " failed " in line and "Next: " in line] == [
        "grad_forward",
        "grad_reverse",
    ]
    assert [outcome.check for outcome in error.report.failed] == ["grad_forward", "grad_reverse"]
    assert "give reference=" in error.report["eager"].detail


def test_the_table_holds_every_check_and_the_reasons(only):
    report = check_kernel(jnp.sin, X, skip={**only("eager"), "eager": "no time"})
    lines = str(report).splitlines()
    assert lines[1].split() == ["check", "outcome", "detail"]
    assert [line.split()[0] for line in lines[2:]] == [*CHECKS]
    assert lines[2].split(maxsplit=3) == ["eager", "not", "tried", "skipped: no time"]


def test_an_error_of_a_call_is_reported_once(only):
    def fn(x):
        raise KeyError("unknown")

    checks = ("eager", "jit", "written", "vmap_sizes", "grad_reverse", "threads")
    with pytest.raises(KernelCheckError) as caught:
        check_kernel(fn, X, skip=only(*checks))
    report = caught.value.report
    assert [outcome.check for outcome in report.failed] == ["eager"]
    for check in checks[1:]:
        assert (report[check].outcome, report[check].detail) == ("not tried", "see eager: a single call is wrong")


def test_an_error_of_the_reference_names_the_reference(only):
    with pytest.raises(KernelCheckError) as caught:
        check_kernel(jnp.sin, X, reference=lambda x, y: x, skip=only("eager", "jit", "vmap_sizes", "threads"))
    outcome = caught.value.report["eager"]
    assert outcome.detail.startswith("the reference raised TypeError: ") and "missing 1 required" in outcome.detail
    assert len(caught.value.report.failed) == 1


def test_the_other_checks_of_a_wrong_kernel_are_not_tried(only):
    checks = ("eager", "jit", "inputs_kept", "vmap_nested", "grad_reverse")
    with pytest.raises(KernelCheckError) as caught:
        check_kernel(lambda x: x + x, X, reference=lambda x: x, skip=only(*checks))
    report = caught.value.report
    assert [outcome.check for outcome in report.failed] == ["eager"]
    for check in checks[1:]:
        assert (report[check].outcome, report[check].detail) == ("not tried", "see eager: a single call is wrong")


def test_the_other_checks_of_a_kernel_with_unwritten_elements_are_not_tried(only, register):
    def forgets_the_last(x, out):
        for i in range(x.size - 1):
            out[i] = x[i]

    target = register(forgets_the_last, [("float32", 1)], [("float32", 1)])
    checks = ("written", "inputs_kept", "threads")
    with pytest.raises(KernelCheckError) as caught:
        check_kernel(lambda x: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))(x), X,
                     reference=lambda x: x, skip=only(*checks))  # fmt: skip
    report = caught.value.report
    assert [outcome.check for outcome in report.failed] == ["written"]
    for check in ("inputs_kept", "threads"):
        assert report[check].detail == "see written: a single call is wrong"


def test_unwritten_elements_are_named_where_they_happen_to_be_wrong(only, register):
    def forgets_the_last(x, out):
        for i in range(x.size - 1):
            out[i] = x[i]

    target = register(forgets_the_last, [("float32", 1)], [("float32", 1)])
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(X.shape, X.dtype))
    with pytest.raises(KernelCheckError) as caught:
        check_kernel(call, X, reference=lambda x: x + 1, skip=only("eager", "written", "inputs_kept"))
    assert [outcome.check for outcome in caught.value.report.failed] == ["eager", "written"]
    assert caught.value.report["inputs_kept"].detail == "see eager: a single call is wrong"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jax_debug_nans", True),
        ("jax_numpy_rank_promotion", "raise"),
        ("jax_transfer_guard", "disallow"),
        ("jax_disable_jit", True),
    ],
)
def test_settings_for_other_calls_are_ignored(only, name, value):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        check_kernel(jnp.sin, X, reference=np.sin, skip=only("eager", "written", "vmap_sizes", "grad_vmap"))
    finally:
        jax.config.update(name, before)


def test_threads_use_the_backend_of_the_caller(only, new_name):
    op, used = XLACustomKernel(new_name()), []

    def generator(backend):
        def generate(outs):
            used.append(backend)
            return lambda x: [x + 1 if backend == "right" else x]

        return generate

    for backend in ("wrong", "right"):
        op.def_kernel(backend, "cpu", generator(backend))
    with use_backend("right"):
        check_kernel(lambda x: op(x, outs=X), X, reference=lambda x: x + 1, skip=only("eager", "threads"))
    assert set(used) == {"right"}


def test_threads_and_processes_use_the_types_of_the_caller(only, enable_x64):
    x = np.linspace(0, 1, 5)
    with enable_x64():
        report = check_kernel(jnp.sin, x, reference=np.sin, skip=only("threads", "export"))
    assert len(report.passed) == 2


def test_the_summary_counts_all_three_outcomes(only):
    """Checks that are not tried are not counted as passed."""
    report = check_kernel(jnp.sin, X, skip=only())
    assert str(report).splitlines()[0] == f"sin: of {len(CHECKS)} checks 0 passed, 0 failed, {len(CHECKS)} not tried."
    report = check_kernel(jnp.sin, X, reference=np.sin, skip=only("eager", "vmap_sizes"))
    assert (
        str(report).splitlines()[0] == f"sin: of {len(CHECKS)} checks 2 passed, 0 failed, {len(CHECKS) - 2} not tried."
    )
    assert [outcome.check for outcome in report.passed] == ["eager", "vmap_sizes"]
    assert len(report.not_tried) == len(CHECKS) - 2


def test_without_a_reference_no_values_are_checked(only):
    report = check_kernel(jnp.sin, X, skip=only("eager", "jit"))
    assert (report["eager"].outcome, report["jit"]) == ("not tried", Outcome("jit", "passed"))
    assert "give reference=" in report["eager"].detail


def test_checks_without_inputs_or_outputs_are_not_tried(only):
    checks = ("written", "inputs_kept", "vmap_nested", "grad_forward", "shard_map", "sharding_rule")
    report = check_kernel(lambda: jnp.arange(3), skip=only(*checks))
    assert {report[name].outcome for name in checks[1:]} == {"not tried"}
    report = check_kernel(lambda x: (), X, skip=only("written"))
    assert report["written"].outcome == "not tried"


def test_a_missing_package_is_no_failure(only, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    report = check_kernel(jnp.sin, X, reference=np.sin, skip=only("eager", "export"))
    assert (report["export"].outcome, report["eager"].outcome) == ("not tried", "passed")
    assert install_command("core", "export") in report["export"].detail

    def fn(x):
        raise MissingDependencyError("install it")  # the kernel's own package: it cannot be called at all

    with pytest.raises(KernelCheckError) as caught:
        check_kernel(fn, X, skip=only("eager", "export"))
    assert [outcome.check for outcome in caught.value.report.failed] == ["eager"]


def test_a_family_is_skipped_as_a_whole(only):
    skip = {**only("grad_forward", "grad_reverse", "grad_vmap"), "grad": "there is no derivative"}
    report = check_kernel(jnp.sin, X, skip=skip)
    assert [report[name].detail for name in ("grad_forward", "grad_reverse", "grad_vmap")] == [
        "skipped: there is no derivative"
    ] * 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"skip": {"gradient": "none"}}, "skip has 'gradient'; allowed: call, control_flow, eager"),
        ({"skip": {"grad": " "}}, r"skip\['grad'\] is ' '; expected the reason"),
        ({"skip": {"grad": None}}, r"skip\['grad'\] is None"),
        ({"skip": ["grad"]}, r"skip is \['grad'\]; expected a mapping, such as skip=\{\"grad\": "),
        ({"skip": "grad"}, r"skip is 'grad'"),
        ({"skip": []}, r"skip is \[\]"),
        ({"grad_order": 3}, r"grad_order is 3; allowed: 1 or 2"),
        ({"rtol": float("inf")}, r"rtol is inf; expected a finite number of at least 0"),
        ({"atol": "a"}, r"atol is 'a'; expected a finite number of at least 0"),
        ({"samples": [(X[1:],)]}, r"samples\[0\] is float32\[4\]; expected .* float32\[5\]"),
        ({"samples": [(X, X)]}, r"samples\[0\] is float32\[5\], float32\[5\]"),
        ({"samples": X}, r"samples\[0\] is float32\[\]; expected .* samples=\[\("),
        ({"reference": X}, r"reference is array.*; expected a function of arrays"),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(ArgumentError, match=text):
        check_kernel(jnp.sin, X, **options)


def test_wrong_functions():
    with pytest.raises(ArgumentError, match=r"fn is array\(.*; expected a function of arrays"):
        check_kernel(X, jnp.sin)


def test_pytrees_and_no_inputs(only):
    def fn(pair):
        return {"sum": pair["a"] + pair["b"]}

    checks = ("eager", "jit", "vmap_nested", "grad_reverse")
    report = check_kernel(fn, {"a": X, "b": Y}, reference=fn, skip=only(*checks))
    assert {report[name].outcome for name in checks} == {"passed"}
    report = check_kernel(lambda: jnp.arange(3), reference=lambda: np.arange(3), skip=only("eager", "vmap_sizes"))
    assert (report["eager"].outcome, report["vmap_sizes"].outcome) == ("passed", "not tried")


def test_importing_core_does_not_import_the_kit():
    code = "import sys, xlakernel.core; sys.exit(any('xlakernel.core.testing' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
    code = "import sys, xlakernel.core.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
