"""Constants of the random numbers, for Numba and for plain JAX.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Its counter
consists of a group of four consecutive neurons, the step, the draw and the kind of number. Each neuron of the group has
one of the four words that the generator returns.
"""

#: The kinds of numbers, each an independent stream. Part ``k`` of a Poisson number has the kind ``POISSON + 4 * k``.
UNIFORM, NORMAL, POISSON = 0, 1, 2

#: A Poisson number is the sum of parts; this is the largest mean of a part.
SHARE = 3.5

#: The most parts of a Poisson number, so that drawing ends even for an infinite mean.
PARTS = 1 << 16

# Poisson numbers are drawn in fixed point, so that they are the same on every platform. Probabilities are multiples of
# 2**-32; means, and means divided by counts, are multiples of 2**-30.
#: log2(e), in multiples of 2**-31.
LOG2_E = 3098164009
#: The coefficients of ``2**-f = 1 - f * (c[0] - f * (c[1] - ...))`` for f from 0 to 1, in multiples of 2**-32. The
#: polynomial is exact at 0 and at the Chebyshev points of the quotient ``(1 - 2**-f) / f``; its error is 1e-10.
POWERS = 2977044471, 1031764939, 238387495, 41304489, 5712048, 639488, 48550
#: The number of counts that are tried without a branch.
FIRST_TERMS = 8
#: The number of counts whose quantiles are computed in advance. With a mean of 2.3, about one of 1e7 draws is larger.
QUANTILES = 14
#: 1, 1/2, 1/3, ..., in multiples of 2**-31. The probabilities of larger counts are 0.
RECIPROCALS = tuple(round(2**31 / count) for count in range(1, 33))
