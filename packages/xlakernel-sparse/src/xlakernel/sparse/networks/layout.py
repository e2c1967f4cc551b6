"""`Layout`: the division of neurons into blocks, and the bits of a synapse's entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xlakernel.core.errors import ArgumentError

#: The most bits of an entry's weight in 32 bits, and in 64.
WEIGHT_BITS = (16, 32)
#: A network's sums have fewer units, a fourth of what int32 holds: a state may have sums of others on their way.
MOST_UNITS = 2**29
# The most steps ahead: their records take memory.
_MOST_AHEAD = 16


class Layout(NamedTuple):
    """The division of neurons into blocks, and the bits of a synapse's entry.

    An entry has, from its lowest bit, the target's place within its block, the row of sums that it is added to, and the
    weight as a signed integer. Row ``(delay - 1) * receptors + receptor`` counts from the step after the spike. A wide
    entry has two words, the second of which is the weight.

    Attributes:
      edges: the first neuron of each block, and the number of neurons.
      owners: the population of each block.
      receptors: their names.
      depth: the longest delay, in steps.
      ahead: the steps by which a block on a GPU may be ahead of others: 1, but the shortest delay in a network with
        plastic projections, whose blocks take different times in a step.
      target_bits, row_bits: bits of the fields of an entry.
      wide: True if an entry has two words.
      scattered: True if the entries of a source are one segment, and a target is a neuron of the network. Blocks of a
        GPU then add the entries of their own spikes to sums that they share.
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
        """The segments of a source's entries, one for each block; one in all if the entries are scattered."""
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
        """The length of a row of sums: the neurons of a block or, if they are scattered, of the network."""
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
    """Return the layout of about this many blocks, each of which has neurons of one population.

    Args:
      sizes: the sizes of the populations.
      receptors: their names.
      depth: the longest delay, in steps.
      blocks: the number of blocks; a population has at least one.
      weight_bits: the bits of the largest weight, with its sign.
      ahead: the steps by which a block on a GPU may be ahead of others.
      scattered: True if the entries of a source are to be one segment, for which the bits of an entry must suffice.

    Raises:
      ArgumentError: if an entry of 64 bits has no room for a target and a row.
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
            f"Network: {layout.size} neurons, and {layout.segments} segments of each for blocks of up to "
            f"{layout.stride}; allowed: products of both below 2**31. {action}."
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
