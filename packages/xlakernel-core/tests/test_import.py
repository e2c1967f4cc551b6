"""What `import xlakernel.core` costs and shows."""

import importlib.metadata
import inspect
import json
import os
import subprocess
import sys

import pytest

import xlakernel.core

pytestmark = pytest.mark.versions

# Lists what the import loaded and made JAX do; then does it itself, to show that it would have been seen.
REPORT = """
import json, logging, os, sys, threading
import jax
events = []
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: events.append(event))
flags = dict(jax.config.values)
environment = dict(os.environ)
before = set(sys.modules)
{statement}
report = {{
    "loaded": sorted(set(sys.modules) - before),
    "events": list(events),
    "flags": [name for name in flags if jax.config.values[name] != flags[name]],
    "environment": environment == dict(os.environ),
    "threads": threading.active_count(),
    "handlers": len(logging.getLogger().handlers),
}}
jax.numpy.zeros(3) + 1
report["seen afterwards"] = list(events)
print(json.dumps(report))
"""


def report(statement):
    command = [sys.executable, "-W", "error", "-c", REPORT.format(statement=statement)]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def imported():
    return report("import xlakernel.core")


def test_nothing_heavy_is_loaded(imported):
    heavy = ("numba", "llvmlite", "warp", "cuda", "scipy", "hypothesis", "pytest", "matplotlib")
    assert "xlakernel.core.operator.custom_kernel" in imported["loaded"]
    assert [name for name in imported["loaded"] if name.partition(".")[0] in heavy] == []


def test_no_sibling_is_loaded(imported):
    ours = [name for name in imported["loaded"] if name.startswith("xlakernel.")]
    assert [name for name in ours if not f"{name}.".startswith("xlakernel.core.")] == []


def test_nothing_is_compiled(imported):
    assert [event for event in imported["events"] if "compile" in event or "trac" in event] == []
    assert any("compile" in event for event in imported["seen afterwards"])


def test_no_global_state_is_changed(imported):
    assert imported["flags"] == []
    assert imported["environment"]
    assert imported["threads"] == 1
    assert imported["handlers"] == 0


@pytest.mark.process
def test_an_operator_runs_without_numba():
    statement = (
        "from xlakernel.core import XLACustomKernel; op = XLACustomKernel('double'); "
        "op.def_jax_kernel(lambda outs: lambda x: 2 * x); x = jax.numpy.ones(3); "
        "assert jax.vmap(lambda x: op(x, outs=x))(x[None]).sum() == 6"
    )
    assert [name for name in report(statement)["loaded"] if name.partition(".")[0] in ("numba", "llvmlite")] == []


def test_the_version_is_the_distributions():
    try:
        installed = importlib.metadata.version("xlakernel-core")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("xlakernel-core is imported from its sources, without an installed distribution to compare with")
    assert xlakernel.core.__version__ == installed


def test_xlakernel_is_a_namespace_that_packages_share():
    import xlakernel

    assert xlakernel.__file__ is None


FACADE = [
    "AutoChoice",
    "BenchmarkCase",
    "BenchmarkResult",
    "Exported",
    "KernelEntry",
    "Measurement",
    "XLACustomKernel",
    "XLAKernelError",
    "auto_choices",
    "debug_mode",
    "deserialize",
    "errors",
    "export",
    "operators",
    "reset_auto_choices",
    "tune",
    "use_backend",
]


def test_the_facade_is_what_it_says():
    public = {name: value for name, value in vars(xlakernel.core).items() if not name.startswith("_")}
    rooms = {name for name, value in public.items() if inspect.ismodule(value) and name != "errors"}
    assert sorted(public.keys() - rooms) == FACADE


@pytest.mark.parametrize("name", FACADE)
def test_the_facade_is_documented(name):
    assert inspect.getdoc(getattr(xlakernel.core, name))


@pytest.mark.parametrize(
    "kind",
    [
        xlakernel.core.XLACustomKernel,
        xlakernel.core.KernelEntry,
        xlakernel.core.Exported,
        xlakernel.core.BenchmarkResult,
    ],
    ids=lambda kind: kind.__name__,
)
def test_public_members_are_documented(kind):
    public = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
    members = {name: value for name, value in public.items() if callable(value) or isinstance(value, property)}
    assert [name for name, value in members.items() if not inspect.getdoc(value)] == []
