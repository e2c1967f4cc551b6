"""Errors about a Numba CUDA that is missing, old, broken or simulated, and about a missing GPU."""

import re
import sys

import jax
import jax.numpy as jnp
import numba
import pytest

from xlakernel.core.backend import install_command
from xlakernel.core.backend.gpu import driver
from xlakernel.core.errors import DeviceError, LaunchError, MissingDependencyError, SettingError
from xlakernel.cuda import _environment
from xlakernel.cuda._kernels import device as _device


@pytest.fixture
def installed(monkeypatch):
    """Set the versions that are installed; None: not at all."""
    versions = {"numba-cuda": "0.30.4", "numba": "0.68.1", "numpy": "2.4.6", "cuda-bindings": "13.5.0"}
    monkeypatch.setattr(_environment, "_version", versions.get)
    _environment.numba_cuda.cache_clear()
    yield versions
    _environment.numba_cuda.cache_clear()


def test_the_installed_versions_work(installed):
    assert _environment.numba_cuda() is sys.modules["numba.cuda"]


@pytest.mark.parametrize(
    ("package", "version", "message"),
    [
        (
            "numba-cuda",
            None,
            rf"the installed numba.cuda is Numba's own.*{re.escape(install_command('cuda', 'cuda13'))}",
        ),
        ("numba-cuda", "0.23.1", r"needs numba-cuda 0\.24 or newer; this is 0\.23\.1"),
        ("numba-cuda", "0.9", r"needs numba-cuda 0\.24"),
        ("numpy", "2.5.0", r"numba-cuda 0\.30\.4 imports with NumPy 2\.5\.0.*pip install \"numpy<2\.5\""),
        ("numpy", "3.0", "cannot compile"),
    ],
)
def test_versions_that_do_not_work_are_named_with_the_fix(installed, make_axpy, package, version, message):
    installed[package] = version
    with pytest.raises(MissingDependencyError, match=message):
        make_axpy()


def test_a_newer_numba_cuda_is_tried_with_a_newer_numpy(installed):
    installed["numpy"], installed["numba-cuda"] = "2.5.0", "0.31.0"
    assert _environment.numba_cuda() is sys.modules["numba.cuda"]


def test_an_import_that_fails_names_the_versions(installed, monkeypatch):
    def broken(name):
        raise AttributeError("module 'numba.cuda.types' has no attribute 'NPDatetime'")

    monkeypatch.setattr(_environment.importlib, "import_module", broken)
    with pytest.raises(MissingDependencyError, match=r"numba-cuda 0\.30\.4 cannot.*numba 0\.68\.1.*NPDatetime"):
        _environment.numba_cuda()


def test_the_simulator_is_refused(installed, monkeypatch, make_axpy):
    monkeypatch.setattr(numba.config, "ENABLE_CUDASIM", True)
    with pytest.raises(SettingError, match="NUMBA_ENABLE_CUDASIM"):
        make_axpy()


def lower(run, *inputs):
    return jax.jit(run).trace(*inputs).lower(lowering_platforms=("cuda",))


@pytest.fixture
def no_gpu(monkeypatch):
    def missing(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", missing)
    for cached in (_device.shared_mem_limits, driver.devices):
        cached.cache_clear()


def test_without_a_gpu_wrapping_and_tracing_work_and_lowering_is_an_error(no_gpu, make_axpy):
    run = make_axpy()
    assert jax.eval_shape(run, jnp.ones(3), jnp.ones(3)).shape == (3,)
    with pytest.raises(DeviceError, match=r"needs an NVIDIA GPU.*Unknown backend cuda.*nvidia-smi.*pip install"):
        lower(run, jnp.ones(3), jnp.ones(3))


def test_a_process_without_a_gpu_of_its_own(no_gpu, monkeypatch, make_axpy):
    monkeypatch.setattr(jax, "local_devices", lambda backend: [])
    with pytest.raises(DeviceError, match=r"needs an NVIDIA GPU of this process.*local_device_ids"):
        lower(make_axpy(), jnp.ones(3), jnp.ones(3))


def test_shared_memory_beyond_the_device_is_refused_when_lowering(h200, make_axpy):
    run = make_axpy(shared_mem=h200 + 1)
    with pytest.raises(LaunchError, match=r"shared_mem is 232449 bytes.*H200 \(GPU 0\) allows 232448"):
        lower(run, jnp.ones(3), jnp.ones(3))


def test_a_launch_that_one_of_several_devices_allows_is_allowed(monkeypatch):
    monkeypatch.setattr(_device, "shared_mem_limits", lambda: {"small": 49152, "large": 232448})
    _device.check_device("k", 200000)
    with pytest.raises(LaunchError, match="large allows 232448"):
        _device.check_device("k", 300000)


@pytest.mark.parametrize(("version", "known"), [("0.28.3", False), ("0.29.0", True), ("0.30.4", True), ("1.0", True)])
def test_which_numba_takes_arrays_of_bfloat16(monkeypatch, version, known):
    monkeypatch.setattr(_environment, "_version", lambda name: {"numba-cuda": version}[name])
    assert _environment.has_bfloat16_arrays() == known
