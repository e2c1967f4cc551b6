"""Check the contents of a package's wheel and source archive: ``check_wheel.py PACKAGE WHEEL SDIST``."""

from __future__ import annotations

import email
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULES = tomllib.loads(Path(__file__).with_name("rooms.toml").read_text("utf-8"))
CODE = {".py", ".typed"}
BESIDE = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}


def folders(package: str) -> tuple[str, ...]:
    """Return the folders in the distribution, with that of the package first."""
    return tuple(f"xlakernel/{name}/" for name in (package, *RULES[package].get("beside", [])))


def places(package: str) -> tuple[str, ...]:
    """Return the folders of the package and, with the command, what ``python -m xlakernel`` runs."""
    inside = folders(package)
    return (*inside, "xlakernel/__main__.py") if "xlakernel/command/" in inside else inside


def source_files(package: str) -> set[str]:
    """Return the files of the package that git does not ignore, relative to ``src``."""
    root = ROOT / f"packages/xlakernel-{package}/src"
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=root, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.splitlines() if (root / name).is_file()}


def wheel_problems(package: str, path: Path) -> Iterator[str]:
    """Yield what is wrong with the files and the metadata of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (info,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        meta = email.message_from_bytes(wheel.read(info))
        licensed = any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())
    expected = source_files(package)
    inside = folders(package)
    for name in sorted(names):
        if not name.startswith(places(package)):
            yield f"{name} lies outside {' and '.join(inside)}"
        elif name not in expected:
            yield f"{name} is not in the source tree"
        elif Path(name).suffix not in CODE:
            yield f"{name} is neither code nor py.typed"
    required = {f"{folder}{name}" for folder in inside for name in ("py.typed", "__init__.py")}
    for name in sorted((expected | required) - names):
        yield f"{name} is missing"
    about = (ROOT / f"packages/xlakernel-{package}/src/{inside[0]}__about__.py").read_text("utf-8")
    if f'"{meta["Version"]}"' not in about:
        yield f"its version is {meta['Version']}, which differs from __about__.py"
    if meta["License-Expression"] != "Apache-2.0" or not licensed:
        yield "the license, Apache-2.0, is missing"
    for requirement in meta.get_all("Requires-Dist", []):
        if " @ " in requirement:
            yield f"it depends on a URL: {requirement}"


def sdist_problems(package: str, path: Path) -> Iterator[str]:
    """Yield what is wrong with the files of a source archive."""
    with tarfile.open(path) as archive:
        names = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    for name in sorted(names - BESIDE):
        if not name.startswith((*(f"src/{place}" for place in places(package)), "tests/")):
            yield f"{name} does not belong here"
    wanted = {f"src/{name}" for name in source_files(package)} | BESIDE - {".gitignore"}
    for name in sorted(wanted - names):
        yield f"{name} is missing"


def main(package: str, *files: str) -> None:
    """Check every file; one wheel and one source archive are expected."""
    paths = [Path(file) for file in files]
    if sorted(path.suffix for path in paths) != [".gz", ".whl"]:
        sys.exit(f"xlakernel-{package}: expected one wheel and one source archive, got {files}")
    for path in paths:
        check = wheel_problems if path.suffix == ".whl" else sdist_problems
        if lines := list(check(package, path)):
            sys.exit("\n".join(f"{path.name}: {line}" for line in lines))
        print(f"{path.name}: contents and metadata are correct")


if __name__ == "__main__":
    main(*sys.argv[1:])
