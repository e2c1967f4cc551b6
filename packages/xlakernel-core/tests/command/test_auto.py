"""``xlakernel auto``: what is remembered, and how it is forgotten."""

import builtins
import json
from pathlib import Path

import pytest

from xlakernel.command import command_line, installed
from xlakernel.core import AutoChoice, XLACustomKernel, auto_choices, auto_records


@pytest.fixture
def remembered(auto_folder):
    """Remember a choice for each of two operators."""
    for operator in ("csrmv", "fft"):
        question = auto_records.Question(
            operator, "cpu", "a CPU, 2 cores", "float32[8] -> float32[8]", ("numba", "jax")
        )
        choice = AutoChoice(
            *(operator, "cpu", "a CPU, 2 cores", "float32[8] -> float32[8]", "numba"),
            seconds={"jax": 2.5e-4, "numba": 1.2e-5},
            problems={"warp": "it is not installed"},
            date="2026-01-31",
            versions=auto_records.installed_versions(),
        )
        auto_records.remember(question, choice)
    return auto_folder


def test_what_is_remembered(remembered, capsys):
    assert command_line.main(["auto", "csrmv"]) == 0
    assert capsys.readouterr().out == f"{auto_choices('csrmv')[0]}\n"
    assert command_line.main(["auto"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("options", [[], ["--reset"]])
def test_a_name_that_is_unknown(remembered, capsys, options):
    assert command_line.main(["auto", "ftf", *options]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "'ftf'" in said.err
    assert len(auto_choices()) == 2


def test_an_operator_of_an_installed_package(auto_folder, capsys, monkeypatch):
    def register(modules):
        XLACustomKernel("of_a_package", replace=True)
        return {}

    monkeypatch.setattr(installed, "load", register)
    assert command_line.main(["auto", "of_a_package"]) == 0
    assert capsys.readouterr().out.startswith("No choice is remembered.")


def test_reset(remembered, capsys):
    assert command_line.main(["auto", "--reset", "fft"]) == 0
    assert capsys.readouterr().out == "Forgot 1 choice.\n"
    assert [choice.operator for choice in auto_choices()] == ["csrmv"]
    assert command_line.main(["auto", "--reset"]) == 0
    assert auto_choices() == [] and list(remembered.iterdir()) == []


def test_a_file_that_cannot_be_removed(remembered, capsys, monkeypatch):
    def refuse(self, missing_ok=False):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "unlink", refuse)
    assert command_line.main(["auto", "--reset"]) == 1
    assert "a choice cannot be forgotten: [Errno 13] Permission denied" in capsys.readouterr().err


def test_where_core_cannot_be_imported(capsys, monkeypatch):
    def refuse(name, *args, known=builtins.__import__, **kwargs):
        if name == "xlakernel.core":
            raise ImportError("no JAX")
        return known(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert command_line.main(["auto"]) == 1
    assert "xlakernel.core cannot be imported: no JAX. Run `xlakernel doctor`." in capsys.readouterr().err


ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b1m\x7f\r"


def test_what_a_file_holds_does_not_control_the_terminal(remembered, capsys):
    """Users may share the folder: texts of others are printed with their control characters spelled out."""
    for path in remembered.iterdir():
        content = json.loads(path.read_text("utf-8"))
        content["operator"] += "\x1b[2J"
        content["problems"] = {f"warp{ESCAPES}": f"not here{ESCAPES}\nsecond line"}
        for key in ("platform", "device", "call", "backend", "date"):
            content[key] += ESCAPES
        content["seconds"] = {content["backend"]: 1.0}
        path.write_text(json.dumps(content), "utf-8")
    auto_records._known.clear()
    assert command_line.main(["auto"]) == 0
    said = capsys.readouterr().out
    assert r"csrmv\x1b[2J" in said
    assert r"\x1b[2J\x1b]0;title\x07\x9b1m\x7f\r" in said
    assert command_line.main(["auto", "csrmv\x1b[2"]) == 2
    err = capsys.readouterr().err
    assert all(character.isprintable() or character == "\n" for character in said + err)


def test_a_folder_named_like_a_file_does_not_stop_a_reset(remembered, capsys):
    (remembered / "csrmv-folder.json").mkdir()
    assert command_line.main(["auto", "--reset"]) == 0
    assert capsys.readouterr().out == "Forgot 2 choices.\n"
    assert [path.name for path in remembered.iterdir()] == ["csrmv-folder.json"]
