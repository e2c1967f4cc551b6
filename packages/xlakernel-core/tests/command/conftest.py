"""Environments that lack a library, or have another version of it."""

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import xlakernel

LIBRARIES = sorted({Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")})
# Ours are there too where they are imported from their sources; installed ones are among the libraries, and on the path
# those would be found whatever is left out.
SOURCES = [str(Path(path).parent) for path in xlakernel.__path__ if Path(path).parent not in LIBRARIES]


class Environment:
    """A virtual environment with the libraries of this one, by links; some may be left out."""

    def __init__(self, folder, without=()):
        self.folder = folder
        venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
        self.variables = {}
        (self.libraries,) = folder.glob("lib/python*/site-packages")
        for path in LIBRARIES:
            for entry in path.iterdir():
                if entry.name.split("-")[0].split(".")[0] not in without:
                    with contextlib.suppress(FileExistsError):
                        (self.libraries / entry.name).symlink_to(entry)

    def write(self, name, text):
        """Put a file among the libraries, in place of what was there."""
        path = self.libraries / name
        if path.parent.is_symlink():
            path.parent.unlink()
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")

    def pretend(self, distribution, version):
        """Change the version in the metadata of a distribution."""
        name = distribution.replace("-", "_")
        for link in self.libraries.glob(f"{name}-*.dist-info"):
            link.unlink()
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        self.write(f"{name}-{version}.dist-info/METADATA", metadata)

    def python(self, *arguments):
        own = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XLAKERNEL_"))}
        own |= {"PYTHONPATH": os.pathsep.join(SOURCES), "JAX_PLATFORMS": "cpu"} | self.variables
        return subprocess.run(
            [self.folder / "bin" / "python", *arguments],
            env=own,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def doctor(self):
        """Return the exit status and the findings by name, from the JSON output."""
        done = self.python("-m", "xlakernel", "doctor", "--json", "--timeout", "100")
        assert done.stdout, done.stderr
        found = json.loads(done.stdout)
        return done.returncode, {finding["name"]: finding for finding in found["findings"]}


@pytest.fixture
def environment(tmp_path):
    """Return a function that makes an environment."""
    return lambda without=(): Environment(tmp_path / "environment", without)


@pytest.fixture
def run():
    """Run the command in this environment."""

    def run(*arguments, **variables):
        command = [sys.executable, "-m", "xlakernel", *arguments]
        own = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES), "JAX_PLATFORMS": "cpu", **variables}
        return subprocess.run(command, env=own, capture_output=True, text=True, timeout=120, check=False)

    return run
