"""What is said where Numba CUDA is missing, old, broken or simulated, and where there is no GPU."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numba
import pytest

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


def test_what_is_here_is_fine(installed):
    assert _environment.numba_cuda() is sys.modules["numba.cuda"]


@pytest.mark.parametrize(
    ("package", "version", "message"),
    [
        ("numba-cuda", None, r"numba.cuda that is here is Numba's own.*pip install \"xlakernel-cuda\[cuda13\]\""),
        ("numba-cuda", "0.23.1", r"needs numba-cuda 0\.24 or newer; this is 0\.23\.1"),
        ("numba-cuda", "0.9", r"needs numba-cuda 0\.24"),
        ("numpy", "2.5.0", r"numba-cuda 0\.30\.4 imports with NumPy 2\.5\.0.*pip install \"numpy<2\.5\""),
        ("numpy", "3.0", "cannot compile"),
    ],
)
def test_versions_that_do_not_work_are_named_with_what_mends_them(installed, make_axpy, package, version, message):
    installed[package] = version
    with pytest.raises(MissingDependencyError, match=message):
        make_axpy()


def test_a_numba_cuda_that_may_know_a_newer_numpy_is_tried(installed):
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
def no_driver(monkeypatch):
    from cuda.bindings import driver

    def missing(_):
        raise RuntimeError("libcuda.so.1 cannot be loaded. Install the driver.\nAnd more.")

    monkeypatch.setattr(driver, "cuInit", missing)
    _device.device_limits.cache_clear()
    yield
    _device.device_limits.cache_clear()


def test_without_a_driver_wrapping_and_tracing_work_and_lowering_says_what_is_missing(no_driver, make_axpy):
    run = make_axpy()
    assert jax.eval_shape(run, jnp.ones(3), jnp.ones(3)).shape == (3,)
    with pytest.raises(DeviceError, match=r"no NVIDIA driver.*libcuda.*the driver\. Kernels.*nvidia-smi"):
        lower(run, jnp.ones(3), jnp.ones(3))


def test_a_driver_without_a_gpu_is_told_apart(monkeypatch, make_axpy):
    from cuda.bindings import driver

    monkeypatch.setattr(driver, "cuInit", lambda _: (driver.CUresult.CUDA_ERROR_NO_DEVICE,))
    monkeypatch.setattr(driver, "cuGetErrorString", lambda _: (driver.CUresult.CUDA_SUCCESS, b"no device"))
    _device.device_limits.cache_clear()
    with pytest.raises(DeviceError, match=r"CUDA_ERROR_NO_DEVICE \(100: no device\).*nvidia-smi"):
        lower(make_axpy(), jnp.ones(3), jnp.ones(3))


def test_shared_memory_beyond_the_device_is_refused_when_lowering(h200, make_axpy):
    run = make_axpy(shared_mem=h200.shared_mem + 1)
    with pytest.raises(LaunchError, match=r"shared_mem is 232449 bytes.*H200 \(GPU 0\) allows 232448"):
        lower(run, jnp.ones(3), jnp.ones(3))


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("block", (128, 1024, 64), r"256 along x; small allows 128"),
        ("threads", 128, r"256 threads; small allows 128"),
        ("grid", (1, 65535, 65535), r"2 along x; small allows 1"),
    ],
)
def test_a_device_with_smaller_limits_is_named(monkeypatch, make_axpy, limit, value, message):
    small = _device.Limits("small", (1024, 1024, 64), 1024, (2**31 - 1, 65535, 65535), 49152)
    small = dataclasses.replace(small, **{limit: value})
    monkeypatch.setattr(_device, "device_limits", lambda: (small,))
    with pytest.raises(LaunchError, match=f"axpy: .*{message}"):
        lower(make_axpy(), jnp.ones(300), jnp.ones(300))


def test_what_one_of_several_devices_takes_is_not_refused(monkeypatch):
    large = _device.Limits("large", (1024, 1024, 64), 1024, (2**31 - 1, 65535, 65535), 232448)
    small = _device.Limits("small", (1024, 1024, 64), 1024, (2**31 - 1, 65535, 65535), 49152)
    monkeypatch.setattr(_device, "device_limits", lambda: (small, large))
    geometry = _device.Geometry((1, 1, 1), (1, 1, 1))
    _device.check_launch("k", geometry, 200000)
    with pytest.raises(LaunchError, match="small allows 49152"):
        _device.check_launch("k", geometry, 300000)


@pytest.mark.parametrize(("version", "known"), [("0.28.3", False), ("0.29.0", True), ("0.30.4", True), ("1.0", True)])
def test_which_numba_takes_arrays_of_bfloat16(monkeypatch, version, known):
    monkeypatch.setattr(_environment, "_version", lambda name: {"numba-cuda": version}[name])
    assert _environment.has_bfloat16_arrays() == known
