"""Constants of the random numbers, for Numba and for plain JAX.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), counted by four
neurons, step, draw and kind of number: its four words belong to four neurons that follow each other.
"""

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
INCREMENTS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10

#: The kinds of numbers, which are independent streams; the parts of a Poisson number add multiples of 4.
UNIFORM, NORMAL, POISSON = 0, 1, 2

#: The largest mean of a part of a Poisson number.
SHARE = 3.5

#: The most parts of a Poisson number, so that drawing ends for each mean.
PARTS = 1 << 16

# Poisson numbers are drawn in fixed point, so that they are the same on every platform. Probabilities are multiples of
# 2**-32, means and their quotients of 2**-30.
#: log2(e), in multiples of 2**-31.
LOG2_E = 3098164009
#: The coefficients of ``2**-f = 1 - f * (c[0] - f * (c[1] - ...))`` for f from 0 to 1, in multiples of 2**-32: the
#: polynomial that is exact at 0 and at the Chebyshev points of the quotient ``(1 - 2**-f) / f``; its error is 1e-10.
POWERS = 2977044471, 1031764939, 238387495, 41304489, 5712048, 639488, 48550
#: Counts that are tried without a branch.
FIRST_TERMS = 8
#: Counts with quantiles that are found once for a run. A mean of 2.3 has a larger one in 1e7 draws.
QUANTILES = 14
#: 1, 1/2, 1/3, ..., in multiples of 2**-31. After as many counts each probability is 0.
RECIPROCALS = tuple(round(2**31 / count) for count in range(1, 33))
