"""The bytes of an exported program: a header with the recipes of its kernels, then JAX's serialised program.

magic (8 bytes) | format (2) | length of the header (4) | SHA-256 of all else (32) | header | program
header: JSON, {"targets": [{"name", "platform", "module", "data"}, ...], "made with": {distribution: version}}
program: from jax.export
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from ..__about__ import __version__
from ..errors import ExportError
from ..ffi.registry import Recipe

_MAGIC = b"xlaknl\r\n"  # changes if the file is copied as text
_FORMAT = 3
_HEAD = struct.Struct("<8sHI")
_DIGEST = slice(_HEAD.size, _HEAD.size + hashlib.sha256().digest_size)


@dataclasses.dataclass(frozen=True)
class StoredTarget:
    """A handler that a program calls: its name, XLA's name of its platform, and its recipe."""

    name: str
    platform: str
    recipe: Recipe


def pack(targets: Sequence[StoredTarget], program: bytes) -> bytes:
    """Return the artifact of a program that JAX serialised."""
    made_with = {"python": platform.python_version(), "jax": jax.__version__, "xlakernel-core": __version__}
    listed = [
        {"name": t.name, "platform": t.platform, "module": t.recipe.module, "data": t.recipe.data} for t in targets
    ]
    header = json.dumps({"targets": listed, "made with": made_with}, sort_keys=True).encode()
    return _sealed(header, program)


def _sealed(header: bytes, program: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, _FORMAT, len(header))
    return head + hashlib.sha256(head + header + program).digest() + header + program


def unpack(blob: Any) -> tuple[list[StoredTarget], bytes, dict[str, str]]:
    """Return the targets and the program of an artifact, and the version of each package that wrote it.

    Raises:
      ExportError: if *blob* is not a result of `pack`.
    """
    try:
        data = bytes(memoryview(blob))
    except TypeError as error:
        raise ExportError(
            f"deserialize: expected the bytes that serialize() returned; got {type(blob).__name__}. Read them from a "
            'file opened with "rb".'
        ) from error
    if not data or data[:8] != _MAGIC[: len(data)]:
        raise ExportError(
            f"deserialize: these {len(data)} bytes are not a program that xlakernel.core.export wrote; they begin with "
            f"{data[:8]!r}. Read programs of jax.export with jax.export.deserialize."
        )
    head, digest, body = data[: _DIGEST.start], data[_DIGEST], data[_DIGEST.stop :]
    _, format_, header_size = _HEAD.unpack(head.ljust(_HEAD.size, b"\0"))
    if len(head) == _HEAD.size and format_ != _FORMAT:
        raise ExportError(
            f"deserialize: the program is damaged, or in format {format_}; xlakernel-core {__version__} reads format "
            f"{_FORMAT}. Install the version that wrote it, or export the program again with this one."
        )
    if hashlib.sha256(head + body).digest() != digest:
        raise ExportError(
            f"deserialize: the exported program is damaged: the checksum of its {len(data)} bytes differs from the one "
            "that it was written with. Copy the file again, as a whole and in binary mode."
        )
    targets, made_with = _read_header(body[:header_size])
    return targets, body[header_size:], made_with


def _read_header(content: bytes) -> tuple[list[StoredTarget], dict[str, str]]:
    try:
        header = json.loads(content)
        targets = [_target(entry) for entry in header["targets"]]
        made_with = {str(name): str(version) for name, version in header["made with"].items()}
        made_with["jax"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ExportError(
            f"deserialize: the header of the program cannot be read: {type(error).__name__}: {error}. The checksum is "
            "right, so it was not written by xlakernel.core.export; do not load it."
        ) from error
    return targets, made_with


def _target(entry: Mapping[str, Any]) -> StoredTarget:
    texts = [entry["name"], entry["platform"], entry["module"]]
    if not (all(isinstance(text, str) for text in texts) and isinstance(entry["data"], dict)):
        raise TypeError(f"{entry!r:.200} is not a target")
    name, platform_, module = texts
    return StoredTarget(name, platform_, Recipe(module, entry["data"]))
