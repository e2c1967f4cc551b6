"""conda-forge recipes of the packages named, from their metadata and source archives in ``dist/``.

A recipe is written to ``dist/conda/<name>/recipe.yaml`` and rendered with rattler-build, which refuses fields, versions
and expressions that a recipe cannot have. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import rattler_build
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from tree import PREFIX, Tree

#: Distributions that conda-forge has under another name.
CONDA_NAMES = {"flatbuffers": "python-flatbuffers", "matplotlib": "matplotlib-base"}
#: Extras that choose wheels of JAX and CUDA; conda chooses by the driver.
OF_WHEELS = {"cuda12", "cuda13"}


def requirements(tree: Tree, package: str, extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """Yield the requirements of a package with *extras*; those that an extra of a sibling stands for follow it."""
    project = tree.project(package)
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    for requirement in map(Requirement, lines):
        if requirement.marker is not None:
            sys.exit(f"{package}: {requirement} has a marker, which a recipe for all platforms cannot have")
        if requirement.name != PREFIX + package:
            yield requirement
        if requirement.name.startswith(PREFIX) and requirement.extras:
            yield from requirements(tree, requirement.name.removeprefix(PREFIX), requirement.extras)


def joined(found: Iterable[Requirement]) -> dict[str, SpecifierSet]:
    """Return the versions allowed of each conda package, by name."""
    versions: dict[str, SpecifierSet] = {}
    for requirement in found:
        name = CONDA_NAMES.get(requirement.name, requirement.name)
        versions[name] = versions.get(name, SpecifierSet()) & requirement.specifier
    return dict(sorted(versions.items()))


def specs(versions: dict[str, SpecifierSet]) -> list[str]:
    """Return conda's specifications."""
    return [
        f"{name} {','.join(sorted({*map(str, allowed)}, reverse=True))}".rstrip() for name, allowed in versions.items()
    ]


def recipe(tree: Tree, package: str, archive: Path) -> dict[str, Any]:
    """Return the recipe of a package."""
    name, project = PREFIX + package, tree.project(package)
    needed = joined(requirements(tree, package))
    extras = [extra for extra in project.get("optional-dependencies", {}) if extra not in OF_WHEELS]
    optional = joined(requirements(tree, package, extras))
    scripts = [f"{script} = {function}" for script, function in project.get("scripts", {}).items()]
    (python,) = SpecifierSet(project["requires-python"])  # one bound, ">=3.11": another needs a field of its own
    return {
        "schema_version": 1,
        "context": {"version": tree.version(package), "python_min": python.version},
        "package": {"name": name, "version": "${{ version }}"},
        "source": {
            "url": f"https://pypi.org/packages/source/x/{name}/{name.replace('-', '_')}-${{{{ version }}}}.tar.gz",
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        },
        "build": {
            "number": 0,
            "noarch": "python",
            "script": "${{ PYTHON }} -m pip install . -vv --no-deps --no-build-isolation",
            **({"python": {"entry_points": scripts}} if scripts else {}),
        },
        "requirements": {
            "host": ["python ${{ python_min }}.*", "pip", *specs(joined(map(Requirement, tree.builders(package))))],
            "run": ["python >=${{ python_min }}", *specs(needed)],
            "run_constraints": specs({key: optional[key] for key in optional if key not in needed}),
        },
        "tests": [{"python": {"imports": [f"xlakernel.{package}"], "python_version": "${{ python_min }}.*"}}],
        "about": {
            "homepage": project["urls"]["Source"],
            "summary": project["description"],
            "license": project["license"],
            "license_file": "LICENSE",
        },
        "extra": {"recipe-maintainers": ["xlakernel"]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="+")
    tree = Tree(Path(__file__).parents[2])
    for package in parser.parse_args().packages:
        name = PREFIX + package
        archive = tree.root / "dist" / f"{name.replace('-', '_')}-{tree.version(package)}.tar.gz"
        path = tree.root / "dist" / "conda" / name / "recipe.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(recipe(tree, package, archive), sort_keys=False, width=1000), "utf-8")
        (variant,) = rattler_build.Stage0Recipe.from_yaml(path.read_text("utf-8")).render()
        print(f"{path}: {variant.recipe.package.name} {variant.recipe.package.version}")


if __name__ == "__main__":
    main()
