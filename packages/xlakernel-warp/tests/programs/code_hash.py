"""Kernels that Warp has hashed, compiled or launched before xlakernel.warp completes its hash; prints the results.

``WAVE`` names the builtin that ``wave`` stands for.
"""

import json
import os
import sys
import warnings

import numpy as np
import warp as wp

warnings.simplefilter("error")
wp.set_module_options({"enable_backward": False})

X = np.linspace(0.25, 1.0, 4, dtype=np.float32)
A = wp.array(dtype=float)
wave = getattr(wp, os.environ.get("WAVE", "sin"))


@wp.struct
class Pair:
    first: float
    second: float


@wp.func
def total(pair: Pair):
    return pair.first + pair.second


@wp.kernel(module="own")
def plain(x: A, out: A):
    i = wp.tid()
    pair = Pair()
    pair.first = wp.sin(x[i])
    pair.second = float(i)
    out[i] = total(pair) + wp.vec3(1.0, 2.0, 3.0)[1]


def make(f, **options):
    @wp.kernel(**options)
    def with_builtin(x: A, out: A):
        i = wp.tid()
        out[i] = f(x[i])

    return with_builtin


def make_scaled(c):
    @wp.kernel(module="unique")
    def scaled(x: A, out: A):
        i = wp.tid()
        out[i] = x[i] * c

    return scaled


@wp.kernel(module="wave")
def with_wave(x: A, out: A):
    i = wp.tid()
    out[i] = wave(x[i])


def launched(kernel):
    out = wp.zeros(4, device="cpu")
    wp.launch(kernel, 4, [wp.array(X, device="cpu"), out], device="cpu")
    return out.numpy().tolist()


def hash_of(kernel):
    return kernel.module.get_module_hash(1).hex()


found = {}
if sys.argv[1:] == ["first"]:
    sine, cosine = make(wp.sin), make(wp.cos)
    found["launched"] = launched(sine), launched(cosine)
    found["own"] = hash_of(plain)
    twice = [make_scaled(c) for c in (2.0, 2.0)]
    merged = [make(f, module="unique") for f in (wp.sin, wp.cos)]

from xlakernel.core.errors import CompileError  # noqa: E402
from xlakernel.warp import warp_kernel  # noqa: E402


def called(kernel):
    try:
        return np.asarray(warp_kernel(kernel, lambda x: x)(X)).tolist()
    except CompileError as error:
        return str(error)


found["wave"], found["hash"] = called(with_wave), hash_of(with_wave)
if sys.argv[1:] == ["first"]:
    found["called"] = called(sine), called(cosine)
    found["own again"] = hash_of(plain)
    found["twice"] = [called(kernel) for kernel in twice]
    found["merged"] = [called(kernel) for kernel in merged]
    found["apart"] = [called(make(f, module="unique")) for f in (wp.sin, wp.cos)]
print(json.dumps(found))
