"""Captures that another part of the process disturbs, and their repetition, without a GPU."""

import contextlib

import pytest
from cuda.bindings import driver as cuda

from xlakernel.core.errors import LaunchError, RecordingError
from xlakernel.core.gpu.launchable import Launchable
from xlakernel.core.gpu.recording import record
from xlakernel.core.gpu.recording.match import StructMismatch

INVALIDATED = cuda.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
SUCCESS = cuda.CUresult.CUDA_SUCCESS
LAUNCHABLE = Launchable("name", "mine", "mine.py:1", (), lambda stream, addresses: None)


class Interrupted:
    """A device on which captures fail or succeed as told: an error's name, or what was caught."""

    def __init__(self, monkeypatch, *outcomes):
        self.outcomes = list(outcomes)
        self.captures = self.freed = 0
        for name in ("Ranges", "_capture", "match"):
            monkeypatch.setattr(record, name, getattr(self, name))
        monkeypatch.setattr(record, "describe", str)  # the driver has the words

    def Ranges(self, device):
        return self

    def free(self):
        self.freed += 1

    def _capture(self, launchable, ranges, addresses, stack):
        self.captures += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            record._check_capture(INVALIDATED, outcome, launchable.label)
        if outcome is None:
            record._check_capture(INVALIDATED, None, launchable.label)
        return outcome

    def match(self, old, new, launchable, device):
        if old != new:
            raise StructMismatch(f"{old} and then {new}")
        return "plan", [old, new]

    def run(self):
        with contextlib.ExitStack() as stack:
            return record._record(LAUNCHABLE, 0, stack)


IN_WORDS = RuntimeError("CUDA error 901: operation failed due to a previous error during capture")


@pytest.mark.parametrize(
    "outcomes", [(None, "a", "a"), (IN_WORDS, "a", "a"), ("a", None, IN_WORDS, "b", "a"), ("a", "a")]
)
def test_an_interrupted_capture_is_repeated(monkeypatch, outcomes):
    device = Interrupted(monkeypatch, *outcomes)
    assert device.run() == ("plan", ["a", "a"])
    assert device.captures == device.freed == len(outcomes)


def test_captures_that_are_always_interrupted_are_an_error(monkeypatch):
    device = Interrupted(monkeypatch, *[None] * 9)
    with pytest.raises(RecordingError, match="mine cannot be recorded: the driver ended the capture"):
        device.run()
    assert device.captures == device.freed == record._ATTEMPTS


@pytest.mark.parametrize(
    ("raised", "status", "error"),
    [
        (RuntimeError("a capture, in words"), SUCCESS, RecordingError),
        (KeyError("mine"), SUCCESS, KeyError),
        (LaunchError("ours"), INVALIDATED, LaunchError),
    ],
)
def test_other_errors_are_raised_at_once(raised, status, error):
    with pytest.raises(error) as found:
        record._check_capture(status, raised, "mine")
    assert not isinstance(found.value, record._InterruptedCapture)
