"""Choices of ``backend="auto"``, kept in the process and on disk.

Each choice is a small JSON file, named by a hash of the calls that it applies to (`Question`). Files are replaced
atomically (`cache_folder`). If two processes measure the same calls at once, the file written last remains; both
choices are valid.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..cache_folder import FOLDER_VARIABLE, cache_folder, list_files, read_file, remove_file, replace_file
from ..errors import ArgumentError, AutoBackendWarning
from ..interrupts import is_raised_by_handler
from ..warning import warn
from .descriptions import installed_versions


@dataclasses.dataclass(frozen=True)
class AutoChoice:
    """The fastest backend for some calls, and the backends that it was compared with.

    Attributes:
      operator: the operator's name.
      platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
      device: the kind of device; for a CPU, its model and the number of cores that the process may use.
      call: the calls that the choice applies to, as text: dtypes and shapes of inputs and results, with extents rounded
        up to powers of two, and the static keywords.
      backend: the fastest backend, or the default if it is about as fast.
      seconds: the time of a call with each backend that was timed: the median of several rounds.
      problems: for each backend that was not timed, the error that it raised, or how its results differ.
      date: the day of the measurement, as in 2026-01-31.
      versions: the installed versions, by distribution.
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

    @property
    def _question(self) -> Question:
        """The calls that the choice applies to, with the backends that were compared."""
        backends = tuple(sorted((*self.seconds, *self.problems)))
        return Question(self.operator, self.platform, self.device, self.call, backends)


@dataclasses.dataclass(frozen=True)
class Question:
    """The calls that a choice applies to: the first four attributes of `AutoChoice`, and the sorted backends."""

    operator: str
    platform: str
    device: str
    call: str
    backends: tuple[str, ...]

    def file(self) -> str:
        """Return the name of the choice's file. The name also depends on the installed versions."""
        content = json.dumps([dataclasses.astuple(self), sorted(installed_versions().items())])
        return f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"


# The choices that this process has read or made; None if there was no file, or a damaged one. Threads share the dict
# without a lock: each access is one operation of the dict, and iteration goes over a copy.
_known: dict[Question, AutoChoice | None] = {}
_warned: set[object] = set()


def recall(question: Question) -> AutoChoice | None:
    """Return the choice that this or another process made; None if there is none. The file is read once."""
    if question not in _known:
        folder = cache_folder("auto")
        found = None if folder is None else _read(folder / question.file())
        if found is not None and found._question != question:
            found = None
        _known.setdefault(question, found)  # another thread may have measured meanwhile
    return _known.get(question)


def remember(question: Question, choice: AutoChoice) -> None:
    """Keep a choice for this process and, unless no backend works, on disk for others."""
    _known[question] = choice
    if not choice.seconds:
        return
    folder = cache_folder("auto")
    try:
        if folder is None:
            raise OSError("there is no home folder")
        content = f"{json.dumps(dataclasses.asdict(choice), indent=2)}\n"
        replace_file(folder / question.file(), content.encode())
    except OSError as error:
        if is_raised_by_handler(error):
            raise
        warn_once(
            ("folder", folder),
            f'backend="auto": the choice of {choice.backend!r} for {question.operator} cannot be kept in '
            f"{folder or 'a file'}: {error}. Every process measures for itself. Set {FOLDER_VARIABLE} to a writable "
            "folder.",
        )


def warn_once(key: object, message: str) -> None:
    """Warn with an `AutoBackendWarning`, once for each key."""
    if key not in _warned:
        _warned.add(key)
        warn(message, AutoBackendWarning)


def auto_choices(operator: str | None = None) -> list[AutoChoice]:
    """Return the remembered choices of ``backend="auto"``.

    The list lacks choices that were made with other versions of the installed packages: these are not used.

    Args:
      operator: the name of an operator; None: all operators.

    Returns:
      The choices of this process and of earlier ones, ordered by operator, platform, device and call.

    Raises:
      ArgumentError: if *operator* is not a name.

    Example:
      >>> from xlakernel.core import XLACustomKernel, auto_choices
      >>> _ = XLACustomKernel("chosen", replace=True)
      >>> for choice in auto_choices("chosen"):
      ...     print(choice)  # the backend for these calls, and the time of a call with each
    """
    _check_name("auto_choices", operator)
    found = [choice for _, choice in _files() if choice is not None]
    found += [choice for choice in list(_known.values()) if choice is not None and choice.seconds]
    # The dict removes duplicates: most choices of this process are on disk as well.
    chosen = {choice._question: choice for choice in found if choice.versions == installed_versions()}
    ordered = sorted(chosen.values(), key=lambda choice: (choice.operator, choice.platform, choice.device, choice.call))
    return [choice for choice in ordered if operator in (None, choice.operator)]


def reset_auto_choices(operator: str | None = None) -> int:
    """Forget choices of ``backend="auto"``, so that the next calls measure anew.

    Compiled programs keep their backend, and other running processes keep the choices that they have read.

    Args:
      operator: the name of an operator; None: all operators.

    Returns:
      The number of choices that were forgotten, including those of other versions of the installed packages.

    Raises:
      ArgumentError: if *operator* is not a name.
      OSError: if a file cannot be removed.

    Example:
      >>> from xlakernel.core import XLACustomKernel, reset_auto_choices
      >>> _ = XLACustomKernel("never measured", replace=True)
      >>> reset_auto_choices("never measured")
      0
    """
    _check_name("reset_auto_choices", operator)
    _warned.clear()
    forgotten = set()
    for question, choice in list(_known.items()):
        if operator in (None, question.operator):
            _known.pop(question, None)
            if choice is not None and choice.seconds:
                forgotten.add(question.file())
    for path, choice in _files():
        if operator is None or (choice is not None and choice.operator == operator):
            remove_file(path)
            forgotten.add(path.name)
    return len(forgotten)


def _check_name(asked_by: str, operator: str | None) -> None:
    if operator is not None and not isinstance(operator, str):
        raise ArgumentError(
            f"{asked_by}: operator is {operator!r}; expected the name of an operator, such as "
            f"{getattr(operator, 'name', 'csrmv')!r}, or None for all of them."
        )


def _files() -> Iterator[tuple[Path, AutoChoice | None]]:
    """Yield each file with its choice, which is None if the file is damaged."""
    folder = cache_folder("auto")
    for path in list_files(folder) if folder is not None else ():
        if path.suffix == ".json":
            yield path, _read(path)


def _read(path: Path) -> AutoChoice | None:
    """Return the choice in a file; None if the file is missing or damaged."""
    try:
        choice = AutoChoice(**json.loads(read_file(path)))
        named = all(isinstance(name, str) for name in dataclasses.astuple(choice._question)[:4])
        return choice if named and choice.backend in choice.seconds and str(choice) else None
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        if is_raised_by_handler(error):
            raise
        return None
