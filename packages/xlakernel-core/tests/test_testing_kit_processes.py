"""Programs in several processes that JAX joins into one, and the errors of those that fail."""

import time

import pytest

from xlakernel.core.errors import ArgumentError, KernelCheckError
from xlakernel.core.testing import _processes, run_in_processes

SUM = """
import jax
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("d",))
x = jax.make_array_from_callback((4,), jax.NamedSharding(mesh, P("d")), lambda index: jax.numpy.arange(4.0)[index])
total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))(x)
print(f"process {jax.process_index()} of {jax.process_count()}, {jax.local_device_count()} devices: {total}")
"""


@pytest.fixture
def soon(monkeypatch):
    """Wait for the other processes for half a second once one has failed."""
    monkeypatch.setattr(_processes, "_GRACE", 0.5)


@pytest.mark.process
def test_processes_share_their_devices():
    for i, text in enumerate(run_in_processes(SUM)):
        assert f"process {i} of 2, 2 devices: [6.]\n" in text


@pytest.mark.process
def test_a_process_that_fails_is_not_waited_for_by_the_others():
    program = "import jax, time\nprint('begun')\nassert jax.process_index() == 0, 'no such luck'\ntime.sleep(100)\n"
    start = time.monotonic()
    with pytest.raises(KernelCheckError) as caught:
        run_in_processes(program, devices=1)
    assert time.monotonic() - start < 60
    said = str(caught.value)
    assert "process 1, exit code 1:\n" in said and "program.py" in said and "AssertionError: no such luck" in said
    assert said.count("begun") == 2


def test_a_program_that_takes_too_long_is_ended():
    with pytest.raises(KernelCheckError, match=r"took more than 0\.5 s\.\nprocess 0, exit code -9"):
        run_in_processes("import time\ntime.sleep(100)", processes=1, timeout=0.5)


@pytest.mark.process
@pytest.mark.usefixtures("soon")
def test_the_message_of_an_exit_is_reported_without_waiting():
    program = "import sys, time, jax\nif jax.process_index(): sys.exit('enough')\ntime.sleep(100)\n"
    start = time.monotonic()
    with pytest.raises(KernelCheckError, match=r"process 1, exit code 1:\n(?s:.*)enough"):
        run_in_processes(program, devices=1)
    assert time.monotonic() - start < 60


@pytest.mark.process
def test_an_exit_without_a_status_is_no_failure_and_bytes_that_are_no_text_are_shown():
    program = "import sys\nsys.stdout.buffer.write(b'\\xff!')\nsys.exit()"
    assert run_in_processes(program, processes=1)[0].endswith(r"\xff!")


@pytest.mark.parametrize(
    "options",
    [{"processes": 0}, {"devices": 0}, {"processes": "2"}, {"devices": 1.5}],
    ids=repr,
)
def test_invalid_numbers(options):
    ((name, value),) = options.items()
    with pytest.raises(ArgumentError, match=f"run_in_processes: {name} is {value!r}; expected a"):
        run_in_processes("", **options)
