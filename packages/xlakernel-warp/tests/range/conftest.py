"""What the tests of ranges share: modules of kernels, recorded launches, and launches in pieces."""

import ctypes
import importlib.util
import inspect
import itertools
import sys

import pytest
import warp as wp

from xlakernel.warp import _range

ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)

_names = (f"xlakernel_kernels_{i}" for i in itertools.count())


class Pieces:
    """A launch that runs in ranges."""

    def __init__(self, launch):
        fields = [(f"parameter{i}", type(value)) for i, value in enumerate(launch.params[1:])]
        self.args_type = type("Args", (ctypes.Structure,), {"_fields_": fields})
        self.entry = ENTRY(_range.range_entry(launch))
        self.launch = launch
        self.size = launch.bounds.size

    def __call__(self, begin, end, launch=None):
        bounds, *params = (launch or self.launch).params
        self.entry(ctypes.byref(bounds), ctypes.byref(self.args_type(*params)), begin, end)


@pytest.fixture(scope="package", autouse=True)
def kernel_cache(tmp_path_factory):
    """An empty cache of kernels, which Warp asks for whenever it loads a module."""
    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    before, wp.config.kernel_cache_dir = wp.config.kernel_cache_dir, str(tmp_path_factory.mktemp("kernels"))
    yield wp.config.kernel_cache_dir
    wp.config.kernel_cache_dir = before


@pytest.fixture(scope="package")
def import_kernels(tmp_path_factory, kernel_cache):
    """Return a function that imports a text as a Python module of kernels, under a name that is new or said."""
    folder = tmp_path_factory.mktemp("python")

    def load(text, name=None):
        name = name or next(_names)
        path = folder / f"{name}.py"
        path.write_text(f"import warp as wp\n\n{inspect.cleandoc(text)}\n")
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="package")
def record(kernel_cache):
    """Return a function that records a launch on the CPU."""

    def launch(kernel, dim, *arguments, **options):
        recorded = wp.launch(kernel, dim=dim, inputs=list(arguments), device="cpu", record_cmd=True, **options)
        recorded.kept_alive = arguments  # Warp does so only from 1.15 on
        return recorded

    return launch


@pytest.fixture(scope="package")
def pieces_of():
    """Return a function that prepares a recorded launch to run in ranges: ``pieces_of(launch)(begin, end)``."""
    return Pieces


@pytest.fixture
def builds(monkeypatch):
    """The kernels whose modules are compiled for ranges, in order, from no module on."""
    seen = []
    build = _range.build
    monkeypatch.setattr(_range, "build", lambda kernel, *paths: seen.append(kernel) or build(kernel, *paths))
    monkeypatch.setattr(_range, "_loaded", {})
    return seen
