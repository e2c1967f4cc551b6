"""What the check before a release refuses, on a small repository in which one thing is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
from api_changes import Changes
from check_release import examine, lowest_version
from packaging.version import Version
from tree import Tree

CHECK = Path(__file__).parents[1] / "checks" / "check_release.py"

CHANGELOG = "# Changelog\n\n## {version} ({day})\n\n### New\n\n- Something.\n"
PROJECT = '[project]\nname = "xlakernel-{name}"\ndependencies = {dependencies}\n'
FACADE = """
from . import errors as errors
from ._scale import scale as scale
from ._table import Table as Table

__all__ = ["Table", "errors", "scale"]
"""
TABLE = """
class Table:
    def rows(self, first):
        return first

    @classmethod
    def empty(cls):
        return cls()

    def _secret(self):
        pass
"""
FILES = {
    "__init__.py": FACADE,
    "_scale.py": "def scale(x, factor=2, *, out=None):\n    return x * factor\n\n\ndef unused(x):\n    return x\n",
    "_table.py": TABLE,
    "_parts.py": '__all__ = ["part"]\n\n\ndef part(x):\n    return x\n',
    "errors.py": "class SizeError(ValueError):\n    pass\n\n\nclass _Hidden(SizeError):\n    pass\n",
    "testing/__init__.py": 'from ._check import check as check\n\n__all__ = ["check"]\n',
    "testing/_check.py": "def check(kernel):\n    pass\n",
    "inside.py": "LIMIT = 3\n\n\ndef helper(x):\n    return x\n\n\ndef ours(x):\n    return x\n",
}
SIBLING = "from xlakernel.core.inside import helper as _helper\n\n__all__ = []\n"


class Repository(Tree):
    """A repository of two packages: core, and numba, which needs it."""

    def write(self, name, text):
        path = self.root / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def change(self, name, old, new):
        path = self.folder("core") / "src/xlakernel/core" / name
        text = path.read_text("utf-8")
        assert old in text
        path.write_text(text.replace(old, new), "utf-8")

    def set_version(self, package, version, day="2026-01-31"):
        self.write(f"xlakernel-{package}/src/xlakernel/{package}/__about__.py", f'__version__ = "{version}"\n')
        self.write(f"xlakernel-{package}/CHANGELOG.md", CHANGELOG.format(version=version, day=day))

    def set_bounds(self, bounds):
        self.write(
            "xlakernel-numba/pyproject.toml", PROJECT.format(name="numba", dependencies=[f"xlakernel-core{bounds}"])
        )

    def commit(self, tag=None):
        self.git("add", "--all")
        self.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "a change")
        if tag:
            self.git("tag", tag)


@pytest.fixture
def repository(tmp_path):
    """A repository whose core can be released as 0.1.0."""
    made = Repository(tmp_path)
    made.git("init", "--quiet")
    for name, text in FILES.items():
        made.write(f"xlakernel-core/src/xlakernel/core/{name}", text)
    made.write("xlakernel-core/pyproject.toml", PROJECT.format(name="core", dependencies=[]))
    made.write("xlakernel-numba/src/xlakernel/numba/__init__.py", SIBLING)
    made.set_version("core", "0.1.0")
    made.set_version("numba", "0.1.0")
    made.set_bounds(">=0.1,<0.2")
    made.commit()
    return made


@pytest.fixture
def released(repository):
    """The same, where 0.1.0 has been released."""
    repository.commit("xlakernel-core-v0.1.0")
    return repository


def refused(repository, version=None, tag=None):
    """Return what is said against a release of core, after what was changed is committed."""
    if version:
        repository.set_version("core", version)
    repository.commit()
    found = examine(repository, "core", tag)
    return found.wrong + found.not_yet


def test_a_first_release_has_nothing_to_be_compared_with(repository):
    found = examine(repository, "core", None)
    assert (found.wrong, found.not_yet) == ([], [])
    assert found.notes == ["xlakernel-core has no earlier release: there is no interface to compare with"]


def test_a_tree_with_changes(repository):
    repository.write("xlakernel-core/notes.txt", "not committed")
    (problem,) = examine(repository, "core", None).not_yet
    assert problem == "the tree is not clean:\n?? packages/xlakernel-core/notes.txt"


def test_a_changelog_without_the_version(repository):
    repository.write("xlakernel-core/CHANGELOG.md", CHANGELOG.format(version="0.0.9", day="2026-01-31"))
    assert refused(repository) == ["CHANGELOG.md has no section `## 0.1.0 (YYYY-MM-DD)`"]


def test_a_changelog_that_says_nothing(repository):
    repository.write("xlakernel-core/CHANGELOG.md", "## 0.1.0 (2026-01-31)\n\n## 0.0.9 (2026-01-01)\n\n- Something.\n")
    assert refused(repository) == ["CHANGELOG.md says nothing about 0.1.0"]


def test_a_changelog_without_the_day(repository):
    repository.set_version("core", "0.1.0", day="unreleased")
    repository.commit()
    found = examine(repository, "core", None)
    assert (found.wrong, found.not_yet) == ([], ["CHANGELOG.md must give the day: `## 0.1.0 (YYYY-MM-DD)`"])


def test_a_changelog_with_something_else_for_the_day(repository):
    repository.set_version("core", "0.1.0", day="soon")
    assert refused(repository) == ["CHANGELOG.md has `## 0.1.0 (soon)`, neither (unreleased) nor a day (YYYY-MM-DD)"]


def test_a_version_that_is_released_already(released):
    assert refused(released) == [
        "xlakernel-core-v0.1.0 exists already: raise __version__ first",
        "after xlakernel-core-v0.1.0 this must be 0.1.1 or higher, not 0.1.0",
    ]
    assert examine(released, "core", None).wrong == []


def test_a_tag_of_another_version(repository):
    repository.commit("xlakernel-core-v0.1.1")
    assert "the tag is xlakernel-core-v0.1.1, but the tree holds xlakernel-core-v0.1.0" in refused(
        repository, tag="xlakernel-core-v0.1.1"
    )


def test_the_tag_that_asks_for_the_release_is_not_an_earlier_one(released):
    assert refused(released, tag="xlakernel-core-v0.1.0") == []


def test_a_version_below_the_last(released):
    released.set_bounds(">=0.0.5,<0.2")
    assert refused(released, "0.0.9") == ["0.0.9 is below xlakernel-core-v0.1.0"]


@pytest.mark.parametrize(("bounds", "version"), [(">=0.1,<0.2", "0.2.0"), (">=0.1.1,<0.2", "0.1.0")])
def test_bounds_that_are_not_met(repository, bounds, version):
    repository.set_bounds(bounds)
    (problem,) = refused(repository, version)
    assert problem.startswith("xlakernel-numba requires xlakernel-core ")
    assert problem.endswith(f"; the tree has {version}")
    assert examine(repository, "numba", None).wrong == [problem]


@pytest.mark.parametrize("bounds", ["", ">=0.1", "<0.2", "==0.1.0"])
def test_bounds_on_one_side(repository, bounds):
    repository.set_bounds(bounds)
    (problem,) = refused(repository)
    assert problem.startswith("xlakernel-numba must bound xlakernel-core on both sides")


BREAKING = {
    "a name not listed": (("__init__.py", '"Table", ', ""), "xlakernel.core.Table.rows: no longer public"),
    "a name renamed": (
        ("__init__.py", "scale as scale", "scale as rescale"),
        "xlakernel.core.scale: no longer public",
    ),
    "a parameter removed": (("_scale.py", "x, factor=2", "x"), "_scale.scale(factor): parameter was removed"),
    "a parameter added, required": (("_scale.py", "x, factor", "x, by, factor"), None),
    "a default removed": (("_scale.py", "factor=2", "factor"), "scale(factor): parameter is now required"),
    "a default changed": (("_scale.py", "factor=2", "factor=3"), "scale(factor): parameter default was changed"),
    "made keyword-only": (("_scale.py", "factor=2, *", "*, factor=2"), "scale(factor): parameter kind was changed"),
    "a method removed": (("_table.py", "def rows", "def lines"), "core.Table.rows: no longer public"),
    "a base removed": (("errors.py", "(ValueError)", ""), "errors.SizeError: base class was removed"),
    "a base replaced": (
        ("errors.py", "(ValueError)", "(TypeError)"),
        "core.errors.SizeError: base class ValueError was removed",
    ),
    "a parameter that keywords swallow": (
        ("_scale.py", "*, out=None", "**rest"),
        "_scale.scale(out): parameter was removed",
    ),
    "a method of the class no more": (("_table.py", "    @classmethod\n", ""), "core.Table.empty: is now a"),
    "an error removed": (("errors.py", "SizeError", "LengthError"), "errors.SizeError: no longer public"),
    "a name of another module": (("testing/_check.py", "(kernel)", "(kernel, inputs)"), "check(inputs): parameter was"),
    "what a sibling imports": (("inside.py", "def helper(x)", "def helper(x, y)"), "inside.helper(y): parameter was"),
    "what a sibling imports, removed": (("inside.py", "def helper", "def other"), "inside.helper: no longer public"),
}


@pytest.mark.parametrize("case", BREAKING)
def test_what_breaks_the_interface_needs_a_new_minor_version(released, case):
    change, said = BREAKING[case]
    released.change(*change)
    assert refused(released, "0.1.1") == ["after xlakernel-core-v0.1.0 this must be 0.2.0 or higher, not 0.1.1"]
    (note,) = examine(released, "core", None).notes
    assert any(line.startswith("  broken  ") and (said or "") in line for line in note.splitlines()), note
    released.set_bounds(">=0.2,<0.3")
    assert refused(released, "0.2.0") == []


HARMLESS = {
    "a new name": ("__init__.py", '"scale"', '"scale", "unused"'),
    "an optional parameter": ("_scale.py", "out=None", "out=None, again=False"),
    "a private method": ("_table.py", "def _secret(self)", "def _other(self, x)"),
    "a base between": (
        "errors.py",
        "class SizeError(ValueError)",
        "class _OurError(ValueError):\n    pass\n\n\nclass SizeError(_OurError)",
    ),
    "a private class": ("errors.py", "_Hidden", "_Unseen"),
    "what a private module lists": ("_parts.py", "def part(x)", "def part(x, y)"),
    "what no module lists": ("_scale.py", "def unused(x)", "def unused(x, y)"),
    "what no sibling imports": ("inside.py", "def ours(x)", "def mine(x, y)"),
    "what a function does": ("_scale.py", "x * factor", "factor * x"),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_breaks_nothing_needs_a_new_patch_version(released, case):
    released.change(*HARMLESS[case])
    assert refused(released, "0.1.1") == []


def test_an_import_of_a_whole_module_relies_on_all_of_it(repository):
    repository.write("xlakernel-numba/src/xlakernel/numba/_use.py", "from xlakernel.core import inside\n")
    repository.commit("xlakernel-core-v0.1.0")
    repository.change("inside.py", "def ours(x)", "def mine(x)")
    assert refused(repository, "0.1.1") == ["after xlakernel-core-v0.1.0 this must be 0.2.0 or higher, not 0.1.1"]


def test_what_is_new_is_said(released):
    released.change("__init__.py", '"scale"', '"scale", "inside"')
    released.change("__init__.py", "from . import errors", "from . import inside as inside\nfrom . import errors")
    assert refused(released, "0.1.1") == []
    (note,) = examine(released, "core", None).notes
    assert note.splitlines()[0] == "xlakernel-core since xlakernel-core-v0.1.0: 0 broken, 4 added"
    assert "  added   xlakernel.core.inside.helper" in note.splitlines()


def test_before_the_version_is_raised_the_one_it_needs_is_said(released):
    released.change(*BREAKING["a default changed"][0])
    released.commit()
    found = examine(released, "core", None)
    assert found.wrong == []
    assert "after xlakernel-core-v0.1.0 this must be 0.2.0 or higher, not 0.1.0" in found.not_yet


def test_the_last_release_is_the_highest_final_one_of_this_history(released):
    """Neither a release candidate, nor a tag of another branch, nor another package's."""
    released.set_bounds(">=0.1,<9")
    released.commit()
    released.git("checkout", "--quiet", "--detach")
    released.commit("xlakernel-core-v0.7.0")
    released.git("checkout", "--quiet", "-")
    released.change(*BREAKING["a default changed"][0])
    for tag in ("xlakernel-core-v0.2.0rc1", "xlakernel-numba-v0.8.0", "xlakernel-core-vnext"):
        released.commit(tag)
    assert refused(released, "0.2.0") == []
    assert examine(released, "core", None).notes[0].startswith("xlakernel-core since xlakernel-core-v0.1.0: 1 broken")
    assert refused(released, "0.2.0rc2") == []


@pytest.mark.parametrize(
    ("last", "broken", "added", "lowest"),
    [
        ("0.3.4", [], [], "0.3.5"),
        ("0.3.4", [], ["new"], "0.3.5"),
        ("0.3.4", ["gone"], ["new"], "0.4.0"),
        ("1.3.4", [], [], "1.3.5"),
        ("1.3.4", [], ["new"], "1.4.0"),
        ("1.3.4", ["gone"], [], "2.0.0"),
        ("1.3", [], [], "1.3.1"),
    ],
)
def test_the_lowest_version_that_may_follow(last, broken, added, lowest):
    assert lowest_version(Version(last), Changes(broken, added)) == Version(lowest)


@pytest.mark.parametrize(("dry", "status"), [([], 1), (["--dry-run"], 0)])
def test_a_dry_run_says_what_only_a_release_must_have(repository, dry, status):
    repository.set_version("core", "0.1.0", day="unreleased")
    command = [sys.executable, str(CHECK), "core", "--root", str(repository.root), *dry]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    said = done.stdout if dry else done.stderr
    assert "the tree is not clean:" in said and "CHANGELOG.md must give the day" in said


def test_a_dry_run_refuses_what_main_may_not_have(released):
    released.change(*BREAKING["a default changed"][0])
    released.set_version("core", "0.1.1")
    command = [sys.executable, str(CHECK), "core", "--root", str(released.root), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "  broken  xlakernel.core._scale.scale(factor): parameter default was changed" in done.stdout
    assert "xlakernel-core-v0.1.1: after xlakernel-core-v0.1.0 this must be 0.2.0 or higher, not 0.1.1" in done.stderr
