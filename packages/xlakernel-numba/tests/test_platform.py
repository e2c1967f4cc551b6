"""A CPU kernel in a program for another platform is refused before it is compiled."""

import jax
import jax.export
import numba
import numpy as np
import pytest

from xlakernel.core.errors import PlatformError
from xlakernel.core.ffi.registry import registered_targets
from xlakernel.numba import numba_kernel

X = np.arange(3, dtype=np.float32)
REFUSED = r"only_on_cpu: this kernel runs on cpu; the program is compiled for cuda\. .*jax\.device_put.*XLACustomKernel"


@numba.njit
def only_on_cpu(x, out):
    out[0] = x.no_such_attribute  # a compilation would fail with another error


run = numba_kernel(only_on_cpu, outs=lambda x: x)


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_lowering_for_another_platform(platform):
    before = registered_targets()
    with pytest.raises(PlatformError, match=REFUSED.replace("cuda", platform)):
        jax.jit(run).trace(X).lower(lowering_platforms=(platform,))
    assert registered_targets() == before
    assert only_on_cpu.signatures == []


@pytest.mark.parametrize("platforms", [["cuda"], ["cpu", "cuda"]], ids=str)
def test_exporting_for_another_platform(platforms, run_square_plus):
    checks = [jax.export.DisabledSafetyCheck.custom_call(".*")]
    with pytest.raises(PlatformError, match="square_plus: this kernel runs on cpu; the program is compiled for cuda"):
        jax.export.export(jax.jit(run_square_plus), platforms=platforms, disabled_checks=checks)(X)


def test_a_branch_for_each_platform(run_square_plus):
    def f(x):
        return jax.lax.platform_dependent(x, cpu=run_square_plus, default=lambda x: -x)

    assert jax.jit(f)(X).tolist() == (X * X + X).tolist()
    assert jax.jit(f).trace(X).lower(lowering_platforms=("cuda",)) is not None
