"""What the threads of a kernel share, read out of the C++ that Warp generated for the kernel's module.

On the CPU Warp runs the threads of a launch one after the other, and its native code counts on that: an atomic addition
is a plain one there, and the memory of tiles hangs on a variable of the module. What a kernel does is decided by the
code of the kernel and of all the functions that it reaches, so that neither an addition in a helper nor one that Warp
made of ``out[i] += x`` is missed. What is not recognised counts as shared.

Whether two threads write the same element nobody can see: they may not, as they may not on a GPU.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping

#: What threads may not do at the same time: what the names of such native functions and types of Warp's have in common,
#: what it is, and what to do instead.
SHARED = (
    (
        "atomic",
        "an atomic operation, which Warp does without atomic instructions on the CPU",
        "Warp makes one of `out[i] += x` too: write `out[i] = out[i] + x` if no other thread writes out[i]",
    ),
    ("^det_|deterministic", "an atomic operation in Warp's deterministic form, which needs the order of threads", ""),
    ("tile", "a tile operation, and all tiles of a module are in one place", "write the kernel without tiles"),
    ("^volume_store", "a store into a volume, and volumes have no outputs of their own", "write to an array"),
    ("^adj_", "a derivative, which adds to gradients that threads share", ""),
)
_SHARED = tuple((re.compile(pattern), what, instead) for pattern, what, instead in SHARED)
_FOREIGN = "C++ that Warp did not write, and what it shares is not known", ""

#: What generated code seems to call beside the native functions of Warp and the functions and structs of the module.
HARMLESS = frozenset(
    {"if", "constexpr", "for", "while", "switch", "return", "sizeof", "bool", "printf", "assert", "__debugbreak"}
    | {"iter_cmp", "builtin_block_dim", "builtin_tid1d", "builtin_tid2d", "builtin_tid3d", "builtin_tid4d"}
)

# Comments, literals and the preprocessor's lines: user code is quoted in comments.
_NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#[^\n]*', re.S | re.M)
# Definitions begin at the left margin.
_FUNCTION = re.compile(r"^(?=[A-Za-z])[^\n;{}()]*?\b(?P<name>\w+)\(", re.M)
_STRUCT = re.compile(r"^struct (\w+)", re.M)
# A name that stands behind no dot, and whether it is called.
_NAME = re.compile(r"(?<![\w.])(?P<name>[A-Za-z_]\w*(?:::\w+)*)(?P<called>\s*\()?")
# What stands at the head of the code that Warp makes of Python; a native snippet of the user's has none.
_GENERATED = "// primal vars"
# How the line of Python that code was made of is quoted before it.
_LINE = re.compile(r"// (?P<text>.*\S)\s+<L (?P<number>\d+)>")


@dataclasses.dataclass(frozen=True)
class Effect:
    """Something that the threads of a kernel share.

    Attributes:
      text: what it is and where.
      instead: what to do about it, or nothing.
    """

    text: str
    instead: str


@dataclasses.dataclass(frozen=True)
class _Body:
    """The body of a function in a source, as it is (*raw*) and with blanks for its noise (*code*)."""

    raw: str
    code: str


def shared_effect(source: str, kernel: str) -> Effect | None:
    """Return something that the threads of a kernel share, or None if they share nothing.

    Args:
      source: the C++ that Warp generated for a module.
      kernel: the name in it of the function that is the kernel's code.

    Raises:
      KeyError: if the source does not define that function.
    """
    bodies, structs = _parse(source)
    reached, waiting = {kernel}, [kernel]
    while waiting:
        function = waiting.pop()
        for body in bodies[function]:
            if _GENERATED not in body.raw:
                return Effect(f"{_in_python(function)} is {_FOREIGN[0]}", _FOREIGN[1])
            for match in _NAME.finditer(body.code):
                name = match["name"]
                if name in bodies:
                    if name not in reached:
                        reached.add(name)
                        waiting.append(name)
                elif found := _judge(name, structs, called=bool(match["called"])):
                    where = _place(body.raw[: match.start()], "" if function == kernel else _in_python(function))
                    return Effect(f"{name}{where} is {found[0]}", found[1])
    return None


def _judge(name: str, structs: frozenset[str], *, called: bool) -> tuple[str, str] | None:
    """Return what threads share in *name* and what to do instead, or None if they share nothing."""
    space, *inner = name.split("::")
    if inner and space == "wp":
        return next(((what, instead) for pattern, what, instead in _SHARED if any(map(pattern.search, inner))), None)
    harmless = not called or name in HARMLESS or name in structs
    return None if harmless and not inner else _FOREIGN


def _in_python(function: str) -> str:
    """Return the name of a function of the user's, to which Warp gave a number."""
    return re.sub(r"_\d+$", "", function)


def _place(before: str, function: str) -> str:
    """Return where in Python the code is that follows *before* in the body of a helper, or of the kernel."""
    quoted = list(_LINE.finditer(before))
    line = f"line {quoted[-1]['number']}: {quoted[-1]['text']}" if quoted else ""
    place = ", ".join(filter(None, (function and f"in {function}", line)))
    return f" ({place})" if place else ""


@functools.lru_cache(maxsize=4)
def _parse(source: str) -> tuple[Mapping[str, tuple[_Body, ...]], frozenset[str]]:
    """Return the bodies of the functions that a source defines, by name, and the names of its structs."""
    code = _NOISE.sub(_blank, source)
    bodies: dict[str, tuple[_Body, ...]] = {}
    for name, begin, end in _functions(code):
        bodies[name] = (*bodies.get(name, ()), _Body(source[begin:end], code[begin:end]))
    return bodies, frozenset(_STRUCT.findall(code))


def _blank(noise: re.Match[str]) -> str:
    """Return blanks in the place of *noise*, so that what follows stays where it is."""
    return re.sub(r"[^\n]", " ", noise[0])


def _functions(code: str) -> Iterator[tuple[str, int, int]]:
    """Yield the name of each function that is defined, and where its body begins and ends."""
    for match in _FUNCTION.finditer(code):
        brace = re.compile(r"\s*\{").match(code, _closing(code, match.end() - 1, "()"))
        if brace:
            yield match["name"], brace.end() - 1, _closing(code, brace.end() - 1, "{}")


def _closing(code: str, start: int, brackets: str) -> int:
    """Return the end of what begins with the bracket at *start*."""
    depth = 0
    for match in re.compile(f"[{re.escape(brackets)}]").finditer(code, start):
        depth += 1 if match[0] == brackets[0] else -1
        if not depth:
            return match.end()
    return len(code)
