"""Constants of the random numbers, for Numba and for plain JAX.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), counted by
neuron, step, draw and kind of number.
"""

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
INCREMENTS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10

#: The kinds of numbers, which are independent streams; the parts of a Poisson number add multiples of 4.
UNIFORM, NORMAL, POISSON = 0, 1, 2

#: The largest mean of a part of a Poisson number.
SHARE = 10.0

#: The most parts of a Poisson number, so that drawing ends for each mean.
PARTS = 1 << 16

#: Reciprocals of the counts that inversion can reach: multiplications are faster than divisions.
RECIPROCALS = tuple(1.0 / count for count in range(1, 65))
