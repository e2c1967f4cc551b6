"""The definition of procedural matrices in plain Python, as the documentation has it."""

import decimal
import functools
import math

import numpy as np

LOGARITHM = (3098161973, 1548878642, 1029151573, 749075138, 523484232, 297141728, 111299757, 19518379)
WORD = 2**32


@functools.lru_cache(1 << 16)
def philox(key, counter):
    """Philox4x32-10 (Salmon et al. 2011)."""
    (k0, k1), (a, b, c, d) = key, counter
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (right >> 32) ^ b ^ k0, right % WORD, (left >> 32) ^ d ^ k1, left % WORD
        k0, k1 = (k0 + 0x9E3779B9) % WORD, (k1 + 0xBB67AE85) % WORD
    return a, b, c, d


def word(seed, slot, chunk, line, kind):
    return philox((seed % WORD, seed // WORD), (slot // 4, chunk, line, kind))[slot % 4]


@functools.cache
def gap_constants(probability):
    with decimal.localcontext(prec=50):
        scale = -decimal.Decimal(2).ln() / (1 - decimal.Decimal(probability)).ln()
        shift = next(s for s in range(36, 0, -1) if int(scale * 2**s) < WORD)
        return int(scale * 2**shift), shift


def gap(drawn, probability):
    if probability == 1:
        return 0
    multiplier, shift = gap_constants(probability)
    odd = drawn | 1
    zeros = 32 - odd.bit_length()
    f = (odd << zeros + 1) % WORD
    power = LOGARITHM[-1]
    for coefficient in LOGARITHM[-2::-1]:
        power = coefficient - f * power // WORD
    logarithm = zeros * 2**27 + (2**31 - 1 - f * power // WORD) // 16
    return logarithm * multiplier // 2 ** (27 + shift)


def slots(seed, line, places, probability=None, per_row=None):
    """Yield (chunk, slot, place) of the entries of a line."""
    if per_row is not None:
        for k in range(per_row if places else 0):
            yield k // 128, k % 128, word(seed, k % 128, k // 128, line, 3) * places // WORD
        return
    chunks = max(math.ceil(places * probability / 100), math.ceil(places / 2**23)) if probability else 0
    length = math.ceil(places / chunks) if chunks else 0
    for chunk in range(chunks):
        place, slot = -1, 0
        while True:
            place += 1 + gap(word(seed, slot, chunk, line, 3), probability)
            if place >= min(length, places - chunk * length):
                break
            yield chunk, slot, chunk * length + place
            slot += 1


def deviate(distribution, seed, line, chunk, slot):
    """Return the number that the second parameter is multiplied by."""
    first, second = (word(seed, s, chunk, line, 7) // 256 / 2**24 for s in (slot // 2 * 2, slot // 2 * 2 + 1))
    if distribution == "uniform":
        return second if slot % 2 else first
    radius, angle = math.sqrt(-2 * math.log(1 - first)), 2 * math.pi * second
    return radius * (math.sin(angle) if slot % 2 else math.cos(angle))


def entries(distribution, seed, shape, **connection):
    """Return the rows, the columns and the deviates of all entries; the deviates are 0 for homogeneous weights."""
    found = [
        (line, place, 0.0 if distribution == "homogeneous" else deviate(distribution, seed, line, chunk, slot))
        for line in range(shape[0])
        for chunk, slot, place in slots(seed, line, shape[1], **connection)
    ]
    rows, columns, deviates = zip(*found, strict=True) if found else ((), (), ())
    return np.array(rows, int), np.array(columns, int), np.array(deviates, float)


def dense(distribution, parameters, seed, shape, **connection):
    """Return the matrix in double precision."""
    rows, columns, deviates = entries(distribution, seed, shape, **connection)
    first, second = {
        "homogeneous": lambda weight: (weight, 0),
        "uniform": lambda low, high: (low, high - low),
        "normal": lambda mean, std: (mean, std),
    }[distribution](*parameters)
    matrix = np.zeros(shape)
    np.add.at(matrix, (rows, columns), first + second * deviates)
    return matrix
