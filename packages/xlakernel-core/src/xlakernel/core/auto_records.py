"""What ``backend="auto"`` remembers: one small JSON file for each choice, under a name that says what it is about.

A file is written beside its place and then moved there, so that no reader ever sees half of one. Processes that measure
the same at the same time need not know of each other: the last one's file stays, and both are right.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import platform as host
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from .cache_folder import FOLDER_VARIABLE, cache_folder, read_file, replace_file
from .errors import ArgumentError, AutoBackendWarning
from .operator.names import did_you_mean, operators
from .versions import versions
from .warning import warn

_FORMAT = 1  # of the files; one of another format is not read
_MOST = 1 << 20  # bytes that a file may have; users may share the folder


@dataclasses.dataclass(frozen=True)
class AutoChoice:
    """A backend that was found to be the fastest, and what it was compared with.

    Attributes:
      operator: the operator's name.
      platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
      device: the kind of device; of a CPU, its model and how many cores the process may use.
      call: the calls that it is for: dtypes and sizes of inputs and results, sizes rounded up to powers of two, and the
        static keywords.
      backend: the one that is used.
      seconds: those of a call with each backend that was timed, the median of several rounds.
      problems: why the others were not timed: the error, or in what their results differ.
      date: the day of the measurement, as in 2026-01-31.
      versions: of what was installed.
    """

    operator: str
    platform: str
    device: str
    call: str
    backend: str
    seconds: Mapping[str, float]
    problems: Mapping[str, str]
    date: str
    versions: Mapping[str, str]

    def __str__(self) -> str:
        ranking = sorted(self.seconds, key=self.seconds.__getitem__)
        times = ", ".join(f"{backend} {self.seconds[backend] * 1e6:.3g} µs" for backend in ranking)
        failed = "".join(f"; not {backend}: {problem}" for backend, problem in self.problems.items())
        return f"{self.operator} {self.call} on {self.platform} ({self.device}): {self.backend} ({times}{failed})"


@dataclasses.dataclass(frozen=True)
class Question:
    """What a choice is for; the first four attributes are those of `AutoChoice`.

    Attributes:
      backends: those that there were to choose from, in the order of their registration.
    """

    operator: str
    platform: str
    device: str
    call: str
    backends: tuple[str, ...]

    def file(self) -> str:
        """Return the name of its file, another one for other versions of what is installed."""
        content = json.dumps([_FORMAT, dataclasses.astuple(self), sorted(installed_versions().items())])
        return f"{_readable(self.operator)}-{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"

    def fits(self, choice: AutoChoice) -> bool:
        """Whether *choice* answers it."""
        asked = (self.operator, self.platform, self.device, self.call)
        found = (choice.operator, choice.platform, choice.device, choice.call)
        return asked == found and choice.backend in self.backends


# What this process knows. None: no backend works there, which is not worth remembering for longer. Threads share it
# without a lock: each look is one operation of the dict, and whoever goes through it goes through a copy.
_known: dict[Question, AutoChoice | None] = {}
_unmeasured: set[Question] = set()  # of which nothing is known, and which calls that cannot be measured ask
_said: set[object] = set()  # what was warned of


def recall(question: Question) -> AutoChoice | None:
    """Return the choice that was made, by this process or by another one; None if there is none."""
    with contextlib.suppress(KeyError):
        return _known[question]
    if question in _unmeasured:
        return None
    folder = cache_folder("auto")
    choice = None if folder is None else _read(folder / question.file())
    if choice is None or not question.fits(choice):
        return None
    return _known.setdefault(question, choice)


def is_hopeless(question: Question) -> bool:
    """Whether this process found that no backend works."""
    return _known.get(question, False) is None


def give_up(question: Question) -> None:
    """Look for no file about it any more, in this process: whoever asks cannot be measured, and may ask often."""
    _unmeasured.add(question)


def remember(question: Question, choice: AutoChoice | None) -> None:
    """Keep a choice for this process, and on disk for others if that can be; None: there is nothing to choose."""
    _known[question] = choice
    if choice is None:
        return
    folder = cache_folder("auto")
    try:
        if folder is None:
            raise OSError("there is no home folder")
        _write(folder / question.file(), choice)
    except OSError as error:
        warn_once(
            ("folder", folder),
            f'backend="auto": the choice of {choice.backend!r} for {question.operator} cannot be kept in '
            f"{folder or 'a file'}: {error}. Every process measures for itself. Set {FOLDER_VARIABLE} to a folder that "
            "can be written.",
        )


def warn_once(what: object, message: str) -> None:
    """Warn of something that was not warned of before."""
    if what not in _said:
        _said.add(what)
        warn(message, AutoBackendWarning)


def auto_choices(operator: str | None = None) -> list[AutoChoice]:
    """Return the choices that were made for ``backend="auto"`` and are remembered.

    Those of other versions of what is installed are not used any more, and left out.

    Args:
      operator: the name of the operator; None: of all.

    Returns:
      The choices of this process and of those before it, ordered by operator, platform, device and call.

    Raises:
      ArgumentError: if *operator* is not a name, or one that neither an operator of this process nor a choice has.

    Example:
      >>> from xlakernel.core import XLACustomKernel, auto_choices
      >>> _ = XLACustomKernel("chosen", replace=True)
      >>> for choice in auto_choices("chosen"):
      ...     print(choice)  # what is used for which calls, and how long each backend took
    """
    _check_name("auto_choices", operator)
    found = [choice for _, choice in _files(operator) if choice is not None]
    found += [choice for choice in list(_known.values()) if choice is not None]
    # A choice that could not be written is in this process only; any other one is there twice.
    chosen = {_sort_key(choice): choice for choice in found if _is_current(choice, operator)}
    return [chosen[key] for key in sorted(chosen)]


def reset_auto_choices(operator: str | None = None) -> int:
    """Forget the choices that were made for ``backend="auto"``, so that the next calls measure anew.

    Programs that are compiled keep the backend that they have, and other processes that run keep what they know.

    Args:
      operator: the name of the operator; None: of all.

    Returns:
      How many choices were forgotten, those of other versions of what is installed among them.

    Raises:
      ArgumentError: if *operator* is not a name, or one that neither an operator of this process nor a choice has.
      OSError: if a file cannot be removed.

    Example:
      >>> from xlakernel.core import XLACustomKernel, reset_auto_choices
      >>> _ = XLACustomKernel("never measured", replace=True)
      >>> reset_auto_choices("never measured")
      0
    """
    _check_name("reset_auto_choices", operator)
    known = {question: choice for question, choice in list(_known.items()) if _is_of(question, operator)}
    for question in known:
        _known.pop(question, None)
    _unmeasured.clear()
    forgotten = {question.file() for question, choice in known.items() if choice is not None}
    _said.clear()
    for path, choice in _files(operator):
        if choice is not None or operator is None:  # what cannot be read belongs to nobody
            path.unlink(missing_ok=True)
            forgotten.add(path.name)
    return len(forgotten)


def _check_name(asked_by: str, operator: str | None) -> None:
    if operator is None:
        return
    if not isinstance(operator, str):
        raise ArgumentError(
            f"{asked_by}: operator is {operator!r}; expected the name of an operator, such as "
            f"{getattr(operator, 'name', 'csrmv')!r}, or None for all of them."
        )
    if operator in operators() or any(_is_of(question, operator) for question in list(_known)):
        return
    if any(choice is not None for _, choice in _files(operator)):
        return
    remembered = {choice.operator for _, choice in _files(None) if choice is not None}
    advice = did_you_mean(operator, {*operators(), *remembered}) or "operators() has those that there are."
    raise ArgumentError(
        f"{asked_by}: there is no operator {operator!r} in this process, and no choice of one is remembered. {advice} "
        "Operators of a package are there when it is imported; None stands for all of them."
    )


def _is_of(found: Question | AutoChoice, operator: str | None) -> bool:
    return operator is None or found.operator == operator


def _is_current(choice: AutoChoice, operator: str | None) -> bool:
    return _is_of(choice, operator) and choice.versions == installed_versions()


def _sort_key(choice: AutoChoice) -> tuple[Any, ...]:
    compared = tuple(sorted([*choice.seconds, *choice.problems]))
    return choice.operator, choice.platform, choice.device, choice.call, compared


# Files.


def _files(operator: str | None) -> Iterator[tuple[Path, AutoChoice | None]]:
    """Yield the files, with the choices in them; None: it holds something else."""
    folder = cache_folder("auto")
    name = "*" if operator is None else f"{_readable(operator)}-*"
    for path in sorted(folder.glob(f"{name}.json")) if folder is not None else ():
        if path.is_dir() and not path.is_symlink():
            continue
        choice = _read(path)
        if choice is None or _is_of(choice, operator):
            yield path, choice


def _readable(operator: str) -> str:
    return re.sub(r"\W", "_", operator, flags=re.ASCII)[:60]


def _read(path: Path) -> AutoChoice | None:
    """Return the choice in a file; None if there is none that can be read, whatever the reason."""
    try:
        content = json.loads(read_file(path, most=_MOST))
        if content.pop("format") != _FORMAT:
            return None
        choice = AutoChoice(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return choice if _is_whole(choice) else None


def _is_whole(choice: AutoChoice) -> bool:
    texts = (choice.operator, choice.platform, choice.device, choice.call, choice.backend, choice.date)
    tables = ((choice.seconds, float), (choice.problems, str), (choice.versions, str))
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(table, dict) and all(isinstance(v, kind) for v in table.values()) for table, kind in tables)
        and all(math.isfinite(seconds) for seconds in choice.seconds.values())
        and choice.backend in choice.seconds
    )


def _write(path: Path, choice: AutoChoice) -> None:
    content = json.dumps({"format": _FORMAT, **dataclasses.asdict(choice)}, indent=2) + "\n"
    replace_file(path, content.encode())


# What a choice depends on beside the call.


@functools.cache
def installed_versions() -> dict[str, str]:
    """Return the versions of what is installed; those of this process do not change."""
    return versions()


@functools.cache
def describe_device(device: jax.Device) -> str:
    """Return the kind of *device*, by which a choice is remembered."""
    if device.platform != "cpu":
        return str(device.device_kind)
    # JAX calls every CPU "cpu", and a home folder may be that of several machines.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_cpu_model()}, {cores} cores"


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8", "replace"), re.MULTILINE)
        if found:
            return found[1].strip()
    return host.processor() or host.machine()
