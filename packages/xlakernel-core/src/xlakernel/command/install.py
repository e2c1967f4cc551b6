"""Installation commands shown by the xlakernel command and in error messages."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import shlex
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

# Dependencies on other xlakernel packages. xlakernel-core is omitted because it is installed.
_NEEDS = {"sparse": ("numba",)}


class Source(NamedTuple):
    """The origin of the installed xlakernel-core.

    Attributes:
      location: for a clone or wheels, the folder that contains the packages; for a repository, a URL prefix to which a
        package's name is appended; for an index, such as PyPI, None.
      kind: ``"clone"``, ``"editable"``, ``"wheels"``, ``"repository"`` or ``"index"``.
    """

    location: Path | str | None
    kind: str


def install_command(package: str, extra: str = "") -> str:
    """Return the command that installs one of our packages from the source of the installed xlakernel-core.

    Args:
      package: the package's name in the namespace, such as ``"warp"``.
      extra: an extra of the package.
    """
    return " ".join(
        ["pip install", *(pip_arguments(name) for name in _NEEDS.get(package, ())), pip_arguments(package, extra)]
    )


def pip_arguments(package: str, extra: str = "") -> str:
    """Return the arguments of ``pip install`` for one of our packages; see `install_command`."""
    location, kind = source()
    name = f"xlakernel-{package}"
    if kind == "repository":
        return _quoted(f"{name}{f'[{extra}]' if extra else ''} @ {location}{name}")
    options = {"editable": "-e ", "wheels": f"--find-links {_quoted(str(location))} "}.get(kind, "")
    place = f"{location}/{name}" if location is not None and kind != "wheels" else name
    return options + _quoted(f"{place}[{extra}]" if extra else place)


def _quoted(text: str) -> str:
    quoted = shlex.quote(text)
    return quoted if quoted == text or set(text) & set('"$`\\!') else f'"{text}"'


@functools.cache
def source() -> Source:
    """Return the origin of xlakernel-core: https://packaging.python.org/en/latest/specifications/direct-url/."""
    try:
        text = importlib.metadata.distribution("xlakernel-core").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # not installed: the sources of a clone are on the path
        clone = Path(__file__).parents[4]
        return (
            Source(clone, "editable") if (clone / "xlakernel-core/pyproject.toml").is_file() else Source(None, "index")
        )
    try:
        found = json.loads(text or "{}")
        if "vcs_info" in found:
            vcs, where = found["vcs_info"], PurePosixPath(found.get("subdirectory", ""))
            address = f"{vcs['vcs']}+{found['url']}@{vcs['commit_id']}"
            return Source(f"{address}#subdirectory={where.parent}/", "repository")
        if not isinstance(found, dict):
            return Source(None, "index")
    except (ValueError, TypeError, KeyError):  # a damaged file
        return Source(None, "index")
    place = urlsplit(found.get("url", ""))
    path = Path(url2pathname(place.path))
    if place.scheme != "file" or not path.exists():
        return Source(None, "index")
    if path.is_dir():
        return Source(path.parent, "editable" if found.get("dir_info", {}).get("editable") else "clone")
    return Source(path.parent, "wheels")
