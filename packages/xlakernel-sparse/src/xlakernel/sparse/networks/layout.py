"""`Layout`: the division of neurons into blocks, and the bits of a synapse's entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xlakernel.core.errors import ArgumentError

#: The most bits of the weight in an entry (a stored synapse) of 32 bits, and in an entry of 64 bits.
WEIGHT_BITS = (16, 32)
#: A network's own sums are below this number of units, a fourth of what int32 holds. The rest is for the sums of other
#: networks, which a state may have on their way.
MOST_UNITS = 2**29
# The largest *ahead* of a `Layout`: the spikes of more steps would take more memory.
_MOST_AHEAD = 16


class Layout(NamedTuple):
    """The division of neurons into blocks, and the bits of a synapse's entry.

    An entry has three bit fields, from its lowest bit: the target's place within its block, the row of sums to which
    the weight is added, and the weight as a signed integer. The row is ``(delay - 1) * receptors + receptor``; row 0
    is the first row of the step after the spike. A wide entry has two words; the second word is the weight.

    Attributes:
      edges: the first neuron of each block, and the number of neurons.
      owners: the population of each block.
      receptors: the names of the receptors.
      depth: the longest delay, in steps.
      ahead: the most steps by which a block on a GPU may be ahead of others. It is 1 without plastic projections. With
        them, blocks take different times for a step, and it is the shortest delay, but at most 16.
      target_bits, row_bits: the bits of the target and of the row in an entry.
      wide: True if an entry has two words.
      scattered: True if the entries of a source are one segment, whose targets are counted in the network and not in a
        block. Blocks of a GPU then add the entries of their own spikes to sums that they share.
    """

    edges: tuple[int, ...]
    owners: tuple[int, ...]
    receptors: tuple[str, ...]
    depth: int
    ahead: int
    target_bits: int
    row_bits: int
    wide: bool
    scattered: bool

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return len(self.owners)

    @property
    def segments(self) -> int:
        """The number of segments of a source's entries: one for each block, or 1 if the entries are scattered."""
        return 1 if self.scattered else self.blocks

    @property
    def size(self) -> int:
        """The number of neurons."""
        return self.edges[-1]

    @property
    def width(self) -> int:
        """The neurons of the largest block."""
        return max(stop - first for first, stop in zip(self.edges, self.edges[1:], strict=False))

    @property
    def stride(self) -> int:
        """The length of a row of sums: the neurons of a block or, if entries are scattered, of the network."""
        return self.size if self.scattered else self.width

    @property
    def weight_bits(self) -> int:
        """The bits of a weight, with its sign."""
        return WEIGHT_BITS[1] if self.wide else min(32 - self.target_bits - self.row_bits, WEIGHT_BITS[0])

    @property
    def rows(self) -> int:
        """The number of rows of sums, one for each receptor and step."""
        return max(1, self.depth * len(self.receptors))


def choose_layout(
    sizes: Sequence[int],
    receptors: tuple[str, ...],
    depth: int,
    *,
    blocks: int,
    weight_bits: int,
    ahead: int = 1,
    scattered: bool = False,
) -> Layout:
    """Return a layout with about the given number of blocks; each block has neurons of one population.

    Args:
      sizes: the sizes of the populations.
      receptors: the names of the receptors.
      depth: the longest delay, in steps.
      blocks: the wanted number of blocks; each population gets at least one.
      weight_bits: the bits of the largest weight, with its sign.
      ahead: the steps by which a block on a GPU may be ahead of others.
      scattered: True if the entries of a source are to be one segment, provided that target and row fit in 32 bits.

    Raises:
      ArgumentError: if the target and the row of an entry do not fit in 32 bits, or if there are too many segments.
    """
    edges, owners = [0], []
    for owner, number in enumerate(_shares(sizes, blocks)):
        first, size = edges[-1], sizes[owner]
        edges += [first + size * (k + 1) // number for k in range(number)]
        owners += [owner] * number
    layout = Layout(tuple(edges), tuple(owners), receptors, depth, min(ahead, _MOST_AHEAD), 0, 0, False, False)
    row_bits = _bits(layout.rows)
    layout = layout._replace(scattered=scattered and _bits(layout.size) + row_bits <= 32)
    target_bits = _bits(layout.stride)
    if target_bits + row_bits > 32:
        raise ArgumentError(
            f"Network: blocks of {layout.width} neurons and {layout.rows} rows of sums (delays up to {depth} steps, "
            f"{len(receptors)} receptors) need {target_bits + row_bits} bits; allowed: 32. Use more blocks, or a "
            "longer step."
        )
    if layout.segments << target_bits >= 2**31 or layout.size * layout.segments >= 2**31 - 1:
        action = "Use fewer neurons" if layout.segments == 1 else "Use fewer blocks, or neurons"
        raise ArgumentError(
            f"Network: {layout.size} neurons, each with {layout.segments} segments of up to {layout.stride} targets; "
            f"allowed: neurons times segments, and segments times targets, below 2**31. {action}."
        )
    wide = target_bits + row_bits + weight_bits > 32
    return layout._replace(target_bits=target_bits, row_bits=row_bits, wide=wide)


def _bits(count: int) -> int:
    return (count - 1).bit_length()


def _shares(sizes: Sequence[int], blocks: int) -> list[int]:
    """Return the number of blocks of each population, so that the largest block is as small as possible."""
    blocks = max(blocks, len(sizes))
    low, high = 1, max(sizes)
    while low < high:  # the smallest width for which the blocks suffice
        width = (low + high) // 2
        if sum(-(-size // width) for size in sizes) <= blocks:
            high = width
        else:
            low = width + 1
    return [-(-size // low) for size in sizes]
