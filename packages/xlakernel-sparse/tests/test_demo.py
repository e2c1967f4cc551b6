"""The demo in docs/examples: a small run from the command line, and invalid options."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[3] / "docs" / "examples" / "spiking_network.py"


@pytest.mark.process
def test_runs_and_finds_the_same_spikes(tmp_path):
    out = tmp_path / "raster.png"
    arguments = ["--neurons", "200", "--seconds", "0.0301", "--seed", "3", "--out", str(out)]
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert done.stdout.count("301 of 301 steps") == 3
    assert done.stdout.count("as fast; the same spikes for ") == 2
    assert "NOT THE SAME" not in done.stdout
    assert "mean rate 0.0 Hz" not in done.stdout


def test_a_wrong_delivery_is_noticed(script, tmp_path, capsys, monkeypatch):
    def lossy(spiked, table, deliver=script.deliver_gather):
        return deliver(spiked.at[:100].set(False), table)

    monkeypatch.setattr(script, "deliver_gather", lossy)
    arguments = ["--neurons", "200", "--seconds", "0.1", "--out", str(tmp_path / "raster.png")]
    assert script.main(arguments) == 1
    assert "NOT THE SAME" in capsys.readouterr().out


def test_connectivity_is_two_percent_without_self_connections(script):
    n = 2000
    offsets, targets = script.connect(n, np.random.default_rng(0))
    sources = np.repeat(np.arange(n), np.diff(offsets))
    assert (offsets[0], offsets[-1]) == (0, targets.size)
    assert set(np.unique(targets)) <= set(range(n))
    assert not np.any(sources == targets)
    assert np.unique(sources * n + targets).size == targets.size
    assert targets.size == pytest.approx(0.02 * n * (n - 1), rel=0.02)  # seven deviations
    binomial = (0.02 * 0.98 * n) ** 0.5
    for ends in (sources, targets):
        assert np.bincount(ends, minlength=n).std() == pytest.approx(binomial, rel=0.1)


BAD_NUMBERS = ["", "0", "-1", "nan", "inf", "-inf", "many", "1e300", "9" * 400, "9" * 5000]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--neurons", value) for value in [*BAD_NUMBERS, "99", "300001", "1e3", "400.5"]),
        *(("--seconds", value) for value in [*BAD_NUMBERS, "0.00009"]),
        *(("--seed", value) for value in BAD_NUMBERS if value != "0"),
        *(("--out", value) for value in ["", "raster.jpg", "raster", ".png", "missing/raster.png"]),
        *(("--out", value) for value in ["folder.png", "/proc/raster.png", "nul\0.png"]),
        ("--out", "x" * 300 + ".png"),
        ("--neuron_count", "1"),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_bad_values_are_refused(script, option, value, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(SystemExit) as stopped:
        script.main([f"{option}={value}"])
    assert stopped.value.code == 2
    assert option in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--neurons=300000"], ["--seconds=1e6"]])
def test_sizes_beyond_the_memory_are_refused(script, arguments, monkeypatch, capsys):
    pages = {"SC_PHYS_PAGES": 2**20, "SC_PAGE_SIZE": 2**12}
    monkeypatch.setattr(script.os, "sysconf", pages.__getitem__)
    with pytest.raises(SystemExit) as stopped:
        script.parse_arguments(arguments)
    assert stopped.value.code == 2
    assert "GB of memory" in capsys.readouterr().err


def test_checking_the_output_file_leaves_it_alone(script, tmp_path):
    new, old = tmp_path / "new.png", tmp_path / "old.PNG"
    old.write_bytes(b"before")
    for path in (new, old):
        assert script.parse_arguments(["--out", str(path)]).out == path
    assert not new.exists()
    assert old.read_bytes() == b"before"


def test_more_neurons_than_the_reference_parse(script):
    assert script.parse_arguments(["--neurons", "50000"]).neurons == 50_000
