"""Conversion of a captured CUDA graph to steps. Their addresses are those used during the capture."""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cuda.bindings import driver as cuda

from ...errors import RecordingError
from ..driver import check
from ..plan import Copy, Fill, Launch, Step

_Kind = cuda.CUgraphNodeType
_Attribute = cuda.CUlaunchAttributeID

# Launch attributes that a replay repeats.
_KEPT = (
    _Attribute.CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
    _Attribute.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
    _Attribute.CU_LAUNCH_ATTRIBUTE_PRIORITY,
)
# Launch attributes that a replay cannot repeat: a window of addresses, and objects of the capture.
_REFUSED = (
    _Attribute.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
    _Attribute.CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE,
)
_ATTRIBUTE_VALUE = 64  # bytes of a CUlaunchAttributeValue, after 8 bytes of a CUlaunchAttributeID and padding
_DEVICE_MEMORY = (cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE, cuda.CUmemorytype.CU_MEMORYTYPE_UNIFIED)

# Keys in a launch's ``extra``, an array of (key, value) pairs.
_BUFFER, _BUFFER_SIZE = cuda.CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT, cuda.CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT

_NOT_REPLAYED = {
    _Kind.CU_GRAPH_NODE_TYPE_HOST: "a host function",
    _Kind.CU_GRAPH_NODE_TYPE_GRAPH: "a child graph",
    _Kind.CU_GRAPH_NODE_TYPE_CONDITIONAL: "a conditional node",
    _Kind.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: "batched memory operations",
    _Kind.CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: "a signal to an external semaphore",
    _Kind.CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: "a wait for an external semaphore",
    _Kind.CU_GRAPH_NODE_TYPE_EVENT_RECORD: "an external event",
    _Kind.CU_GRAPH_NODE_TYPE_WAIT_EVENT: "a wait for an external event",
}


@dataclasses.dataclass(frozen=True)
class Capture:
    """The work of one capture.

    Attributes:
      steps: in an order in which one stream can run them; all addresses are those of the capture.
      sizes: the sizes of the parameters of each launch, by the number of its step.
      allocations: address and size of the memory allocated on the stream, without overlaps.
      portable: whether the kernels' handles are valid on every device.
    """

    steps: tuple[Step, ...]
    sizes: dict[int, tuple[int, ...]]
    allocations: tuple[tuple[int, int], ...]
    portable: bool


def read_graph(graph: Any, label: str) -> Capture:
    """Return the work in *graph*.

    Args:
      graph: the graph of a stream capture. Its nodes are listed in the order of their capture, and each node depends
        only on earlier nodes. One stream can therefore run them in this order, even if several streams were captured.
      label: the function's name, for messages.

    Raises:
      RecordingError: if a node cannot be replayed.
    """
    steps: list[Step] = []
    sizes: dict[int, tuple[int, ...]] = {}
    allocations: list[tuple[int, int]] = []
    portable = True
    for node in _nodes(graph):
        kind = check(cuda.cuGraphNodeGetType(node))
        if kind == _Kind.CU_GRAPH_NODE_TYPE_KERNEL:
            launch, sizes[len(steps)], everywhere = _read_launch(node, label)
            portable &= everywhere
            steps.append(launch)
        elif kind == _Kind.CU_GRAPH_NODE_TYPE_MEMSET:
            steps.append(_read_fill(check(cuda.cuGraphMemsetNodeGetParams(node))))
        elif kind == _Kind.CU_GRAPH_NODE_TYPE_MEMCPY:
            steps.append(_read_copy(check(cuda.cuGraphMemcpyNodeGetParams(node)), label))
        elif kind == _Kind.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
            parameters = check(cuda.cuGraphMemAllocNodeGetParams(node))
            allocations.append((int(parameters.dptr), int(parameters.bytesize)))
        elif kind not in (_Kind.CU_GRAPH_NODE_TYPE_MEM_FREE, _Kind.CU_GRAPH_NODE_TYPE_EMPTY):
            what = _NOT_REPLAYED.get(kind, f"a node of the kind {kind.name}")
            raise RecordingError(
                f"{label}: {what} cannot be replayed; only kernels, fills and copies within the device can."
            )
    return Capture(tuple(steps), sizes, tuple(merge_overlaps(allocations)), portable)


def merge_overlaps(blocks: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge overlapping blocks, given by address and size; a merged block takes the position of its earliest member.

    The driver reuses the addresses of memory that has been freed, for blocks of other sizes too. Blocks that shared
    addresses in the capture share memory in the replay.
    """
    found: list[tuple[int, int]] = []
    for begin, size in blocks:
        end = begin + size
        meeting = [(b, s) for b, s in found if b < end and begin < b + s]
        low = min([begin, *(b for b, _ in meeting)])
        merged = low, max([end, *(b + s for b, s in meeting)]) - low
        if meeting:
            found[found.index(meeting[0])] = merged
            found = [block for block in found if block not in meeting[1:]]
        else:
            found.append(merged)
    return found


def _nodes(graph: Any) -> list[Any]:
    _, count = check(cuda.cuGraphGetNodes(graph, 0))
    return list(check(cuda.cuGraphGetNodes(graph, count))[0]) if count else []


def _read_launch(node: Any, label: str) -> tuple[Launch, tuple[int, ...], bool]:
    found = check(cuda.cuGraphKernelNodeGetParams(node))
    kernel, function = (int(handle) if handle is not None else 0 for handle in (found.kern, found.func))
    name = _readable(check(cuda.cuKernelGetName(kernel) if kernel else cuda.cuFuncGetName(function)).decode())
    layout = list(_parameters(function, kernel))
    launch = Launch(
        kernel=name,
        handle=kernel or function,
        grid=(found.gridDimX, found.gridDimY, found.gridDimZ),
        block=(found.blockDimX, found.blockDimY, found.blockDimZ),
        shared_mem=found.sharedMemBytes,
        parameters=_values(found, layout),
        offsets=tuple(offset for offset, _ in layout),
        attributes=b"".join(_attributes(node, name, label)),
    )
    return launch, tuple(size for _, size in layout), bool(kernel)


def _values(launch: Any, layout: Sequence[tuple[int, int]]) -> bytes:
    """Return the buffer of a launch's parameters; *layout* has the offset and size of each parameter in it.

    A launch passes a pointer to each parameter, or else the whole buffer, as cuBLAS does on Hopper GPUs.
    """
    size = max((offset + size for offset, size in layout), default=0)
    pointers, extra = (
        ctypes.cast(int(words), ctypes.POINTER(ctypes.c_void_p)) for words in (launch.kernelParams, launch.extra)
    )
    if extra and not pointers:
        given = {extra[0]: extra[1], extra[2]: extra[3]}
        given_size = ctypes.cast(given[_BUFFER_SIZE], ctypes.POINTER(ctypes.c_size_t))[0]
        return ctypes.string_at(given[_BUFFER], min(size, given_size)).ljust(size, b"\0")
    assert pointers or not layout
    buffer = bytearray(size)
    for index, (offset, length) in enumerate(layout):
        buffer[offset : offset + length] = ctypes.string_at(pointers[index], length)
    return bytes(buffer)


def _parameters(function: int, kernel: int) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each parameter."""
    for index in range(1 << 16):
        if function:
            status, offset, size = cuda.cuFuncGetParamInfo(function, index)
        else:
            status, offset, size = cuda.cuKernelGetParamInfo(kernel, index)
        if int(status):  # no further parameter
            return
        yield offset, size


def _attributes(node: Any, name: str, label: str) -> Iterator[bytes]:
    """Yield the attributes of a launch as ``CUlaunchAttribute`` structs."""
    for key in (*_KEPT, *_REFUSED):
        status, value = cuda.cuGraphKernelNodeGetAttribute(node, key)
        data = b"" if int(status) else ctypes.string_at(value.getPtr(), _ATTRIBUTE_VALUE)
        if any(data) and key in _REFUSED:
            raise RecordingError(f"{label}: the launch attribute {key.name} of the kernel {name} cannot be replayed.")
        if any(data):
            yield int(key).to_bytes(8, "little") + data


def _read_fill(found: Any) -> Fill:
    return Fill(
        destination=int(found.dst),
        value=found.value,
        itemsize=found.elementSize,
        width=found.width,
        height=found.height,
        pitch=found.pitch if found.height > 1 else 0,
    )


def _read_copy(found: Any, label: str) -> Copy:
    addresses, pitches, heights = [], [], []
    for side in ("src", "dst"):
        memory = getattr(found, f"{side}MemoryType")
        if memory not in _DEVICE_MEMORY:
            what = "from memory of the host" if side == "src" else "to memory of the host"
            if memory == cuda.CUmemorytype.CU_MEMORYTYPE_ARRAY:
                what = "of a CUDA array (texture memory)"
            raise RecordingError(f"{label}: a copy {what} cannot be replayed; only copies within the device can.")
        base, pitch, height, x, y, z = (
            int(getattr(found, f"{side}{name}")) for name in ("Device", "Pitch", "Height", "XInBytes", "Y", "Z")
        )
        addresses.append(base + x + pitch * (y + height * z))
        pitches.append(pitch if found.Height > 1 or found.Depth > 1 else 0)
        heights.append(height if found.Depth > 1 else 0)
    return Copy(
        source=addresses[0],
        destination=addresses[1],
        width=found.WidthInBytes,
        height=found.Height,
        depth=found.Depth,
        source_pitch=pitches[0],
        source_height=heights[0],
        destination_pitch=pitches[1],
        destination_height=heights[1],
    )


def _readable(name: str) -> str:
    """Return a kernel's name without the mangling of C++ and Numba: ``__main__.add`` for ``_ZN8__main__3addB2v1…``."""
    if not name.startswith("_Z"):
        return name
    rest, parts = name[2:].removeprefix("N"), []
    while found := re.match(r"\d+", rest):
        length, begin = int(found[0]), found.end()
        parts.append(rest[begin : begin + length])
        rest = rest[begin + length :]
    return ".".join(part for part in parts if part) or name
