"""Registration with Warp of streams that are not Warp's own."""

import contextlib
import gc

import pytest
import warp as wp

from xlakernel.core.backend.gpu import warp_streams


@pytest.fixture
def registered(monkeypatch):
    """Stand-ins for Warp's streams, on machines without a GPU; returns the handles that are registered."""
    handles = []

    class Stream:
        is_capturing = False

        def __init__(self, device, cuda_stream):
            self.cuda_stream = cuda_stream
            handles.append(cuda_stream)

        def __del__(self):
            if self.cuda_stream:
                handles.remove(self.cuda_stream)

    monkeypatch.setattr(wp, "Stream", Stream)
    monkeypatch.setattr(wp, "get_cuda_device", lambda device: device)
    monkeypatch.setattr(wp, "ScopedStream", lambda stream, sync_enter: contextlib.nullcontext())
    return handles


def fail(handle):
    with warp_streams.entered(handle, 0):
        raise KeyError("nowhere")


def test_a_stream_is_unregistered_at_the_end_of_a_call(registered):
    with warp_streams.entered(1, 0) as stream:
        assert registered == [1]
    assert registered == []
    del stream
    assert registered == []


def test_an_error_that_is_kept_keeps_no_stream_registered(registered):
    with pytest.raises(KeyError, match="nowhere") as raised:
        fail(1)
    assert registered == []  # the driver destroys the stream now, and gives its handle to the next one
    with warp_streams.entered(1, 0):
        del raised
        gc.collect()
        assert registered == [1]
    assert registered == []
