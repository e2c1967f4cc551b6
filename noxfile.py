"""Sessions for nox. `nox -l` lists them; `nox` without arguments tests every package on the CPU with this Python."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import nox
import nox.command
from nox.project import dependency_groups, load_toml
from packaging.requirements import Requirement

nox.needs_version = ">=2026.4.10"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"
nox.options.error_on_external_run = True
nox.options.error_on_missing_interpreters = True
nox.options.reuse_venv = "yes"

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
DEVICES = ["cuda12", "cuda13"]
CHECKS = ROOT / ".ci" / "checks"
PREFIX = "xlakernel-"
TOOLS = load_toml(ROOT / "pyproject.toml")
ROOMS = load_toml(CHECKS / "rooms.toml")
PROJECTS = {
    path.parent.name.removeprefix(PREFIX): load_toml(path)
    for path in sorted(ROOT.glob(f"packages/{PREFIX}*/pyproject.toml"))
}

# Options that run test files in parallel. A file stays in one process, since its tests share compiled kernels.
SIDE_BY_SIDE = ["--numprocesses=auto", "--maxprocesses=8", "--dist=loadfile"]
# Numba compiles sparse's kernels with these settings in three quarters of the time. Without any optimisation (0), it
# would keep addresses in their code, and not store it on disk. `together` has them for the Python that runs nox; other
# Pythons, `tests` and the tests of installed wheels have Numba's defaults.
FAST_KERNELS = {"NUMBA_OPT": "1", "NUMBA_LOOP_VECTORIZE": "0"}
# Tests of an installed wheel that a dry run selects: imports and a first kernel of each package.
QUICK = {
    "core": ["test_import.py", "test_operator.py", "test_native_callee.py", "command/test_documentation.py"],
    "cuda": ["test_package.py", "test_environment.py"],
    "numba": ["test_registration.py"],
    "sparse": ["test_package.py", "test_validation.py", "test_tutorial.py::test_product_with_a_vector"],
    "warp": [
        "test_package.py",
        "test_types.py",
        "kernels/test_outputs.py::test_several_outputs_of_other_shapes_and_dtypes",
    ],
}

# The Python that runs nox is always tested, even if no executable of its name is on the PATH.
CURRENT = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHONS = sorted({"3.11", "3.12", "3.13", CURRENT}, key=lambda name: int(name.partition(".")[2]))
# Recreate an environment that was made with another Python.
os.environ["NOX_ENABLE_STALENESS_CHECK"] = "1"
os.environ["PATH"] += os.pathsep + str(Path(sys.executable).parent)
# uv installs packages without bytecode. Unless the first process writes it, each process spends seconds on compiling
# its imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

nox.options.sessions = [f"together-{CURRENT}"]
each_package = nox.parametrize("package", [nox.param(name, id=name) for name in PROJECTS])


def extras(package: str) -> dict[str, list[str]]:
    return PROJECTS[package]["project"].get("optional-dependencies", {})


def closure(*wanted: str) -> list[str]:
    """Return *wanted* and their dependencies within this repository, each as ``name`` or ``name[extra]``.

    All of them are installed from the checkout, and none from an index, so that local changes are tested together.
    """
    asked: dict[str, set[str]] = {}
    todo = [Requirement(PREFIX + name) for name in wanted]
    while todo:
        requirement = todo.pop()
        if not requirement.name.startswith(PREFIX):
            continue
        package = requirement.name.removeprefix(PREFIX)
        new = requirement.extras - asked.get(package, set())
        lists = [extras(package)[extra] for extra in new]
        if package not in asked:
            lists.append(PROJECTS[package]["project"]["dependencies"])
        asked.setdefault(package, set()).update(requirement.extras)
        todo += [Requirement(line) for lines in lists for line in lines]
    return [f"{name}[{','.join(sorted(on))}]" if on else name for name, on in asked.items()]


def editable(*wanted: str) -> list[str]:
    return [arg for name in closure(*wanted) for arg in ("-e", f"packages/{PREFIX}{name}")]


def group(name: str) -> list[str]:
    return list(dependency_groups(TOOLS, name))


def split_posargs(session: nox.Session) -> tuple[list[str], list[str]]:
    """Return the packages named in the arguments (all, if none is) and the other arguments."""
    named = [arg for arg in session.posargs if arg in PROJECTS]
    return named or list(PROJECTS), [arg for arg in session.posargs if arg not in PROJECTS]


def only_packages(session: nox.Session) -> list[str]:
    packages, rest = split_posargs(session)
    if set(rest) - {"--quick"}:
        session.error(f"not a package: {rest}; there are {list(PROJECTS)}")
    return packages


def test_requirements(package: str, device: str) -> tuple[list[str], list[str]]:
    """Return the test requirements of a package on a device: those in this repository, and those from an index."""
    lines = [*dependency_groups(PROJECTS[package], "test")]
    if f"test-{device}" in PROJECTS[package].get("dependency-groups", {}):
        lines += dependency_groups(PROJECTS[package], f"test-{device}")
    local = [line.removeprefix(PREFIX) for line in lines if line.startswith(PREFIX)]
    wanted = f"{package}[{device}]" if device in extras(package) else package
    others = [line for line in lines if not line.startswith(PREFIX)]
    return closure(wanted, *local), [*group("test"), *others]


def run_tests(session: nox.Session, package: str, device: str, *install: str) -> None:
    """Run one package's tests, and the examples in its docstrings, on one device."""
    named, rest = split_posargs(session)
    if package not in named:
        session.skip(f"asked for {named} only")
    if device != "cpu" and not has_gpu():
        session.error(f"{device} needs an NVIDIA GPU, and nvidia-smi finds none")
    packages, requirements = test_requirements(package, device)
    session.install(*install, *editable(*packages), *requirements)
    run_pytest(session, package, device, rest)


def run_pytest(session: nox.Session, package: str, device: str, rest: list[str], **settings: str) -> None:
    """Run one package's tests on what is installed; *rest* is handed to pytest, *settings* are for its environment."""
    env = {"JAX_PLATFORMS": "cpu"}
    # Arguments of the user follow these: `-- -m "not gpu"` runs the long grids, and processes, too.
    marked = ["-m", "not gpu and not slow and not process", *SIDE_BY_SIDE]
    if device != "cpu":
        env = {"JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        marked = []
    folder = f"packages/{PREFIX}{package}"
    given = any("/" in arg and (ROOT / arg.partition("::")[0]).exists() for arg in rest)
    paths = [] if given else [f"{folder}/tests", f"{folder}/src"]
    session.run("pytest", "--doctest-modules", *paths, *marked, *rest, env={**env, **own_cache(session), **settings})


def own_cache(session: nox.Session) -> dict[str, str]:
    """Return an environment variable for a cache in the session, so that timings of backend="auto" stay out of the
    user's cache.
    """
    return {"XLAKERNEL_CACHE_DIR": str(Path(session.virtualenv.location, "cache").resolve())}


def has_gpu() -> bool:
    command = shutil.which("nvidia-smi")
    return command is not None and subprocess.run([command, "-L"], check=False).returncode == 0


def newest_cuda() -> str:
    """Return the extra for the newest CUDA version that the GPU's driver supports."""
    said = subprocess.run(["nvidia-smi"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"CUDA Version: (\d+)", said)
    return DEVICES[-1] if found is None or int(found[1]) >= 13 else DEVICES[0]


@nox.session(python=PYTHONS, tags=["cpu"])
@each_package
def tests(session: nox.Session, package: str) -> None:
    """Test on the CPU; `-- numba -k vmap` is one package, with the rest handed to pytest.

    Long grids, marked as slow, and tests that start processes are left out; `-- -m "not gpu"` runs them too.
    """
    run_tests(session, package, "cpu")


@nox.session(python=PYTHONS)
def together(session: nox.Session) -> None:
    """Test on the CPU as `tests` does, every package or those named, but in one environment for all of them."""
    named, rest = split_posargs(session)
    found = [test_requirements(package, "cpu") for package in PROJECTS]
    local, others = ({name for pair in found for name in pair[i]} for i in (0, 1))
    session.install(*editable(*sorted(local)), *sorted(others))
    settings = FAST_KERNELS if session.python == CURRENT else {}
    failed = []
    for package in named:
        try:
            run_pytest(session, package, "cpu", rest, **settings)
        except nox.command.CommandFailed:
            failed.append(package)
    if failed:
        session.error(f"tests of {', '.join(failed)} failed")


@nox.session(python=PYTHONS, tags=["cuda12"], name="tests-cuda12")
@each_package
def tests_cuda12(session: nox.Session, package: str) -> None:
    """Test on a GPU with CUDA 12."""
    run_tests(session, package, "cuda12")


@nox.session(python=PYTHONS, tags=["cuda13"], name="tests-cuda13")
@each_package
def tests_cuda13(session: nox.Session, package: str) -> None:
    """Test on a GPU with CUDA 13."""
    run_tests(session, package, "cuda13")


@nox.session(python="3.11", name="minimum-versions", reuse_venv=False)
@each_package
def minimum_versions(session: nox.Session, package: str) -> None:
    """Test with the oldest direct dependencies that each package declares."""
    if session.venv_backend != "uv":
        session.error("only uv can resolve to the oldest versions: pip install 'nox[uv]'")
    run_tests(session, package, "cpu", "--resolution=lowest-direct")


@nox.session
def demo(session: nox.Session) -> None:
    """Run a spiking network in one native call; arguments go to it."""
    session.install(*editable("sparse"))
    session.run("xlakernel", "demo", *session.posargs, env={"JAX_PLATFORMS": "cpu"})


@nox.session
def fuzz(session: nox.Session) -> None:
    """Test random kernels, shapes and orders of transformations for minutes; arguments are handed to pytest."""
    requirements = dependency_groups(PROJECTS["numba"], "test")
    local = [line.removeprefix(PREFIX) for line in requirements if line.startswith(PREFIX)]
    session.install(*editable("numba", *local), *(line for line in requirements if not line.startswith(PREFIX)))
    path = f"packages/{PREFIX}numba/tests/test_properties.py"
    session.run("pytest", path, *session.posargs, env={"JAX_PLATFORMS": "cpu", "XLAKERNEL_FUZZ": "long"})


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting, and the workflows for weaknesses."""
    session.install(*group("lint"))
    session.run("ruff", "check", "--output-format=concise")
    session.run("ruff", "format", "--check")
    session.run("zizmor", "--offline", "--quiet", ".github")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check the types of what is published."""
    session.install(*editable("core"), *group("typecheck"))
    session.run("mypy", *(f"packages/{PREFIX}{name}/src" for name in PROJECTS))


@nox.session
def layers(session: nox.Session) -> None:
    """Check all imports against the rules in .ci/checks/rooms.toml."""
    session.run("python", str(CHECKS / "check_layers.py"))


def kept(*paths: str) -> list[str]:
    """Return the files under *paths* that are tracked, or untracked and not ignored, by git."""
    listing = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    found = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
    return [name for name in found.splitlines() if (ROOT / name).is_file()]


def copy(names: list[str], away: str) -> None:
    for name in names:
        target = Path(away, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)


@nox.session
def reference(session: nox.Session) -> None:
    """Check that the reference has every public name, its arguments and errors, and that each has a test."""
    session.install(*group("reference"))
    session.run("pytest", "-q", ".ci/tests/test_reference.py")
    session.run("python", str(CHECKS / "check_reference.py"))


@nox.session
def build(session: nox.Session) -> None:
    """Build a wheel and a source archive of each package, or of those named, and check their contents.

    Each is built twice and must be reproducible. The packages' dependencies in this repository, with those of their
    extras and tests, are built as well. A recipe for conda-forge is written for each.
    """
    session.install(*group("build"))
    named = only_packages(session)
    needed = [*closure(*opened(named)), *(name for package in named for name in test_requirements(package, "cpu")[0])]
    when = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True)
    env = {"SOURCE_DATE_EPOCH": when.stdout.strip()}
    with tempfile.TemporaryDirectory() as away:
        copy(kept(".gitignore", "packages"), away)
        packages = sorted({re.sub(r"\[.*", "", name) for name in needed})
        for package in packages:
            for old in DIST.glob(f"xlakernel_{package}-*"):
                old.unlink()
            folder = f"packages/{PREFIX}{package}"
            command = ["python", "-m", "build", "--no-isolation", "--outdir"]
            session.run(*command, str(DIST), folder, env=env, silent=True)
            # The second build starts from fresh copies in another folder, and builds the wheel directly instead of from
            # the source archive.
            session.run(*command, f"{away}/dist", "--sdist", "--wheel", f"{away}/{folder}", env=env, silent=True)
            files = sorted(DIST.glob(f"xlakernel_{package}-*"))
            for path in files:
                if path.read_bytes() != Path(away, "dist", path.name).read_bytes():
                    session.error(f"{path.name} is not reproducible: a second build gave other bytes")
            session.run("twine", "check", "--strict", *map(str, files))
            session.run("python", str(CHECKS / "check_wheel.py"), package, *map(str, files))
    session.run("python", str(CHECKS / "conda_recipe.py"), *packages)


def wheels(packages: list[str]) -> list[str]:
    """Return the requirements that install *packages*, with their extras, from the wheels that `build` made."""
    found = []
    for needed in packages:
        bare, bracket, inside = needed.partition("[")
        found += [f"{path}{bracket}{inside}" for path in DIST.glob(f"xlakernel_{bare}-*.whl")]
    return found


def opened(packages: Iterable[str]) -> list[str]:
    """Return each of *packages* without extras, and with each extra that a room of rooms.toml requires."""
    rooms = [(name, room) for name in packages for room in ROOMS[name].get("rooms", {}).values()]
    # Several rooms may require the same extra.
    return list(dict.fromkeys([*packages, *(f"{name}[{room['extra']}]" for name, room in rooms if "extra" in room)]))


@nox.session(requires=["build"], reuse_venv=False)
@nox.parametrize("package", [nox.param(name, id=name) for name in opened(PROJECTS)])
def isolation(session: nox.Session, package: str) -> None:
    """Import every module of a package from its wheel, installed with its declared dependencies alone."""
    name, _, extra = package.rstrip("]").partition("[")
    if name not in only_packages(session):
        session.skip(f"asked for {session.posargs} only")
    session.install(*wheels(closure(package)))
    script = [str(CHECKS / "check_isolation.py"), name, *([extra] if extra else [])]
    with tempfile.TemporaryDirectory() as away, session.chdir(away):
        session.run("python", "-E", "-s", *script, env={"JAX_PLATFORMS": "cpu"})


@nox.session(python=PYTHONS, name="tests-wheel", requires=["build"], reuse_venv=False)
@each_package
def tests_wheel(session: nox.Session, package: str) -> None:
    """Test a package installed from wheels, outside the repository; `-- numba --quick` runs a few of its tests."""
    if package not in only_packages(session):
        session.skip(f"asked for {session.posargs} only")
    packages, requirements = test_requirements(package, "cpu")
    session.install(*wheels(packages), *requirements)
    folder = f"packages/{PREFIX}{package}"
    modules = [f"xlakernel.{name}" for name in (package, *ROOMS[package].get("beside", []))]
    paths = [f"{folder}/tests", "--pyargs", *modules, "--doctest-modules"]
    # A room whose extra is not installed has no examples to run; `isolation` imports it.
    options = ["-m", "not gpu", *SIDE_BY_SIDE, "--doctest-ignore-import-errors"]
    if "--quick" in session.posargs:
        paths, options = [f"{folder}/tests/{name}" for name in QUICK[package]], ["-m", "not gpu and not slow"]
    with tempfile.TemporaryDirectory() as away:
        # Tests read documentation pages and scripts, so everything is copied except the packages' sources.
        copy([name for name in kept() if "/src/" not in name], away)
        shutil.copyfile(CHECKS / "conftest_installed.py", Path(away, "conftest.py"))
        with session.chdir(away):
            env = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": None}
            session.run("python", "-m", "pytest", "-p", "no:cacheprovider", *paths, *options, env=env)


@nox.session
def bench(session: nox.Session) -> None:
    """Compare with peer libraries, on the CPU and on a GPU if there is one: every benchmark suite, or the one named.

    `-- sparse --platform cpu` runs one suite on one platform; `-- --quick` runs all briefly and writes no results.
    """
    scripts = {path.stem: path for path in sorted(ROOT.glob("benchmarks/[!_]*.py"))}
    named, rest = session.posargs[:1], session.posargs[1:]
    if not named or named[0].startswith("-"):
        named, rest = list(scripts), session.posargs
    if named[0] not in scripts:
        session.error(f"there is no benchmark {named[0]!r}; there are {list(scripts)}")
    if CURRENT == "3.11":
        session.warn("brainevent requires Python 3.12 or newer: it is not measured on this Python")
    wanted, peers = ["core[export]", "numba", "sparse", "warp"], group("bench")
    if has_gpu():
        cuda = newest_cuda()
        wanted += [f"{name}[{cuda}]" for name in ("cuda", "warp", "sparse")]
        peers += group(f"bench-{cuda}")
    session.install(*editable(*wanted), *peers)
    before, ended = time.time(), {}
    for name in named:
        try:
            session.run("python", str(scripts[name]), *rest)
            ended[name] = "all marks hold"
        except nox.command.CommandFailed:
            ended[name] = "a mark does not hold, or the suite failed: see above"
    for name, how in ended.items():
        session.log(f"{name}: {how}")
    for path in sorted(ROOT.glob("benchmarks/results/*.json")):
        if path.stat().st_mtime >= before:
            marks = json.loads(path.read_text("utf-8"))["marks"]
            session.log(f"{path.relative_to(ROOT)}: {sum(mark['holds'] for mark in marks)} of {len(marks)} marks hold")
    if set(ended.values()) != {"all marks hold"}:
        session.error("not all marks hold")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, which runs the pages that need no GPU, two at a time; warnings are errors."""
    session.install(*editable("core[testing]", *PROJECTS), *group("docs"))
    paths = ["docs", "docs/_build/html", *session.posargs]
    env = {"JAX_PLATFORMS": "cpu", **own_cache(session)}
    session.run("python", "-m", "sphinx", "-W", "--keep-going", "-j", "2", "-b", "html", *paths, env=env)


@nox.session
def release(session: nox.Session) -> None:
    """Run every check that a release of PACKAGE requires, then print the commands that tag it: `-- core`.

    `-- --dry-run` runs the shorter checks of every package, or of those named, at any time.
    """
    packages, options = split_posargs(session)
    dry = "--dry-run" in options
    if not dry and len(packages) != 1:
        session.error(f"one package is released at a time: name one of {list(PROJECTS)}")
    session.install(*group("release"))
    session.run("pytest", "-q", ".ci/tests/test_release.py")
    check = ["python", str(CHECKS / "check_release.py")]
    for package in packages:
        session.run(*check, package, *options)
    again = [sys.executable, "-m", "nox", "-f", __file__, "--stop-on-first-error", "-s"]
    alone = [f"isolation({name})" for name in opened(packages)]
    if dry:
        quick = [f"tests-wheel-{CURRENT}({name})" for name in packages]
        session.run(*again, *alone, *quick, "--", *packages, "--quick", external=True)
        session.log("A dry run only reports problems that block a release alone (see above). It does not run:")
        session.log("- lint, typecheck, layers, reference, other Pythons, the oldest dependencies: .ci/run runs them;")
        session.log("- tests of the installed wheels, except those in QUICK of noxfile.py.")
        return
    (package,) = packages
    tested = [f"tests-wheel-{python}({package})" for python in PYTHONS]
    session.run(*again, "lint", "typecheck", "layers", "reference", *alone, *tested, "--", package, external=True)
    session.run(*again, f"minimum-versions({package})", "--", package, "-m", "not gpu", external=True)
    if not options:
        session.run(*check, package, "--print")
