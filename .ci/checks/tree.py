"""Versions, tags and sibling bounds of the packages in a checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

PREFIX = "xlakernel-"


@dataclass(frozen=True)
class Tree:
    """A checkout of the repository, or the files of one of its commits."""

    root: Path

    def names(self) -> list[str]:
        """Return the short names of the packages."""
        return sorted(path.name.removeprefix(PREFIX) for path in self.root.glob(f"packages/{PREFIX}*"))

    def folder(self, package: str) -> Path:
        """Return the folder of a package."""
        return self.root / "packages" / f"{PREFIX}{package}"

    def version(self, package: str) -> str:
        """Return the version in the package's ``__about__.py``."""
        about = self.folder(package) / f"src/xlakernel/{package}/__about__.py"
        found = re.search(r'^__version__ = "(.+)"$', about.read_text("utf-8"), re.MULTILINE)
        if not found:
            sys.exit(f'{about} has no line of the form: __version__ = "1.2.3"')
        return found[1]

    def tag(self, package: str) -> str:
        """Return the tag of the package's version."""
        return f"{PREFIX}{package}-v{self.version(package)}"

    def builders(self, package: str) -> list[str]:
        """Return what the package's build requires."""
        required: list[str] = self._metadata(package)["build-system"]["requires"]
        return required

    def project(self, package: str) -> dict[str, Any]:
        """Return the table ``[project]`` of the package's ``pyproject.toml``."""
        project: dict[str, Any] = self._metadata(package)["project"]
        return project

    def _metadata(self, package: str) -> dict[str, Any]:
        return tomllib.loads((self.folder(package) / "pyproject.toml").read_text("utf-8"))

    def bounds(self, package: str) -> dict[str, SpecifierSet]:
        """Return the versions of each sibling that the package accepts, over all its extras."""
        project = self.project(package)
        extras = project.get("optional-dependencies", {}).values()
        bounds: dict[str, SpecifierSet] = {}
        for requirement in map(Requirement, chain(project["dependencies"], *extras)):
            other = requirement.name.removeprefix(PREFIX)
            if requirement.name.startswith(PREFIX) and other != package:
                bounds[other] = bounds.get(other, SpecifierSet()) & requirement.specifier
        return bounds

    def git(self, *args: str) -> bytes:
        """Return the output of a git command run in the tree."""
        return subprocess.run(["git", "-C", str(self.root), *args], capture_output=True, check=True).stdout

    def git_lines(self, *args: str) -> list[str]:
        """Return the output lines of a git command run in the tree."""
        return self.git(*args).decode().splitlines()
