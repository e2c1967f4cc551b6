"""brainevent's examples of networks with brainevent's matrices and with ours: spikes, and seconds of a run.

    python benchmarks/brainevent_examples.py [--examples FOLDER] [--scales 1 4 …] [--seconds 1] [--rounds 15] [--quick]

The folder is `examples` in a clone of brainevent's repository. The examples make their connections by brainstate, which
imports brainevent; that import is replaced. They need brainstate, brainpy and braintools, and Python 3.12.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from _harness import (
    Mark,
    arguments,
    machine,
    parse,
    print_cells,
    print_marks,
    ratio,
    slug,
    summary,
    time_beside,
    write_json,
)

from xlakernel import sparse

EXAMPLES = ("COBA_2005", "CUBA_2005")
LIBRARIES = ("xlakernel", "brainevent")
_NEEDED = ("brainevent", "brainstate", "brainpy", "braintools", "brainunit")
#: Our names for what brainstate uses of brainevent.
_OURS = SimpleNamespace(FixedPostNumConn=sparse.FixedNumPerPre, EventArray=sparse.BinaryArray)


def definitions(path: Path) -> dict[str, Any]:
    """Return what an example imports and defines, without its runs."""
    kept = (ast.Import, ast.ImportFrom, ast.ClassDef)
    tree = ast.parse(path.read_text("utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, kept)]
    names: dict[str, Any] = {"__name__": path.stem}
    exec(compile(tree, str(path), "exec"), names)  # noqa: S102 - a file that the caller names
    return names


def network(path: Path, library: str, scale: float, seconds: float) -> Callable[[], jax.Array]:
    """Return a jitted function without arguments that runs an example's network, and returns its spikes.

    Args:
      path: the example.
      library: one of `LIBRARIES`.
      scale: the number of neurons over 4 000.
      seconds: the simulated time.

    Returns:
      A function that returns a bool array, ``(steps, neurons)``; a step takes 0.1 ms.
    """
    import brainstate
    import brainunit as u
    from brainstate.nn import _event_fixedprob

    make = definitions(path)["EINet"]

    def run() -> jax.Array:
        np.random.seed(0)  # noqa: NPY002 - brainstate draws the connections from NumPy's global generator
        brainstate.random.seed(0)
        net = make(scale)
        brainstate.nn.init_all_states(net)

        def step(t: Any) -> Any:
            net.update(t, 20.0 * u.mA)
            return net.N.get_spike() != 0

        with brainstate.environ.context(dt=0.1 * u.ms):
            times = u.math.arange(0.0 * u.ms, 1000 * seconds * u.ms, brainstate.environ.get_dt())
            spikes: jax.Array = brainstate.transform.for_loop(step, times)
        return spikes

    run = brainstate.transform.jit(run)
    replaced = _event_fixedprob.brainevent
    if library == "xlakernel":
        _event_fixedprob.brainevent = _OURS
    try:
        jax.block_until_ready(run())
    finally:
        _event_fixedprob.brainevent = replaced
    return run


def measure(options: argparse.Namespace, platform: str) -> bool:
    """Compare and time the examples at all scales; print and write what was found; return whether the marks hold."""
    microseconds, marks, rows = {}, [], {}
    for name in EXAMPLES:
        for scale in options.scales:
            runs = {
                library: network(options.examples / f"{name}.py", library, scale, options.seconds)
                for library in LIBRARIES
            }
            ours, theirs = (np.asarray(run()) for run in runs.values())
            timed = time_beside(runs, calls=dict.fromkeys(runs, 1), rounds=options.rounds)
            case = f"{name}, {ours.shape[1]} neurons"
            microseconds[case] = summary(timed)
            marks.append(Mark(f"{case}, xlakernel / brainevent", ratio(timed, *LIBRARIES), 1.0))
            differing = (ours != theirs).any(1)
            rows[case] = {
                "spikes": f"{ours.sum()}",
                "brainevent's": f"{theirs.sum()}",
                "first step that differs": f"{differing.argmax()}" if differing.any() else "none",
                **{f"{library}, s": f"{statistics.median(values):.3f}" for library, values in timed.items()},
            }
    print_cells(f"{options.seconds:g} s simulated", rows)
    if options.out is not None:
        described = machine()
        content = {
            "machine": described,
            "microseconds": microseconds,
            "tables": {f"spikes in {options.seconds:g} s": rows},
            "marks": [mark.as_dict() for mark in marks],
        }
        print(f"\nwritten: {write_json(options.out, f'brainevent_examples-{slug(described, platform)}', content)}")
    return print_marks(marks)


def main() -> int:
    """Compare the spikes, measure, print, write; return the exit status."""
    parser = arguments(__doc__)
    parser.add_argument("--examples", type=Path, default=Path("examples"), help="folder of the examples (examples)")
    parser.add_argument("--scales", nargs="+", type=float, default=[1.0, 4.0, 10.0], help="neurons over 4 000")
    parser.add_argument("--seconds", type=float, default=1.0, help="simulated time (1)")
    options = parse(parser)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    missing += [str(path) for name in EXAMPLES if not (path := options.examples / f"{name}.py").is_file()]
    if missing:
        print(f"not measured, because these were not found: {', '.join(missing)}")
        return 0
    holds = True
    for platform in options.platforms:
        with jax.default_device(jax.local_devices(backend=platform)[0]):
            holds &= measure(options, platform)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
