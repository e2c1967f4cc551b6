"""Errors of wrong kernels, wrong options and wrong calls."""

import functools
import re
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_array_equal

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import (
    AliasError,
    ArgumentError,
    ArityError,
    DeviceError,
    DifferentiationError,
    DtypeError,
    ExportError,
    GeneratorError,
    InputError,
    KernelTypeError,
    LaunchError,
    OutputSpecError,
    PlatformError,
    ShardingRuleError,
    StaticArgumentError,
    VmapMethodError,
)
from xlakernel.warp import jax_callable, jax_kernel, warp_kernel

wp.set_module_options({"enable_backward": False})

Struct = jax.ShapeDtypeStruct
F32 = jnp.float32
X = np.ones(3, "f4")


def same(x, *_):
    return x


@wp.kernel
def copy(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i]


@wp.kernel
def fill(value: int, out: wp.array(dtype=int)):
    i = wp.tid()
    out[i] = value


@wp.kernel
def turn(x: wp.array(dtype=wp.vec3), m: wp.array2d(dtype=wp.mat22h), out: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    out[i] = x[i] * float(m[0, 0][0, 0])


run_copy = warp_kernel(copy, same)


# What is no kernel


def plain(x, out):
    pass


@wp.func
def function(x: float):
    return x


NO_KERNELS = {
    "a function": (plain, r"plain is of type function; .*warp_kernel\(warp\.kernel\(plain\), \.\.\.\)"),
    "a lambda": (lambda x: x, "<lambda> is of type function"),
    "a warp.func": (function, r"function is of type Function; .*\(warp\.func\), which kernels call: decorate it"),
    "wrapped": (run_copy, "copy is of type KernelFunction; .*wrapped already; wrap the warp.kernel function"),
    "wrapped by jax_kernel": (jax_kernel(copy), "copy is of type JaxKernel; .*wrapped already"),
    "a partial": (functools.partial(plain, 1), "of type partial"),
    "its name": ("copy", "'copy' is of type str"),
    "nothing": (None, "None is of type NoneType"),
    "a class": (wp.Kernel, "Kernel is of type type"),
}


@pytest.mark.parametrize("name", NO_KERNELS)
def test_what_is_no_kernel_is_refused_with_advice(name):
    wrong, text = NO_KERNELS[name]
    with pytest.raises(KernelTypeError, match=f"(?s)^warp_kernel: .*{text}") as caught:
        warp_kernel(wrong, same)
    assert "expected a kernel decorated with warp.kernel" in str(caught.value)


@wp.struct
class Particle:
    mass: float
    place: wp.vec3


def kernel_with(annotation):
    def with_parameter(p, out: wp.array(dtype=float)):
        pass

    with_parameter.__annotations__["p"] = annotation
    return wp.kernel(with_parameter, module=wp.get_module(f"{__name__}.refused"))


REFUSED = {
    "a struct": (Particle, "Invalid type for argument 'p', expected array or scalar.*as scalars, or in an array"),
    "a vector": (wp.vec3, "Invalid type for argument 'p', expected array or scalar"),
    "a matrix": (wp.mat22, "Invalid type for argument 'p', expected array or scalar"),
    "structs": (wp.array(dtype=Particle), "Invalid data type for array argument 'p', expected scalar, vector, or m"),
    "an indexed array": (wp.indexedarray(dtype=float), "Invalid type for argument 'p'.*the array and its indices"),
    "a fabric array": (wp.fabricarray(dtype=float), "Invalid type for argument 'p'"),
    "vectors of any length": (wp.array(dtype=wp.types.vector(Any, wp.float32)), r"warp\.overload\(kernel, \[types\]\)"),
    "matrices of any size": (wp.array(dtype=wp.types.matrix((Any, Any), wp.float32)), r"warp\.overload"),
    "vectors of floats of any width": (wp.array(dtype=wp.types.vector(2, wp.Float)), r"warp\.overload"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parameters_that_jax_has_nothing_for(name):
    annotation, text = REFUSED[name]
    with pytest.raises(KernelTypeError, match=f"(?s)^warp_kernel: with_parameter has the parameter p: .*{text}"):
        warp_kernel(kernel_with(annotation), same)


# Options


OPTIONS = [
    ({"launch_dims": -1}, LaunchError, "launch_dims is -1; expected a non-negative integer, or a tuple of 1 to 4"),
    ({"launch_dims": (2, -3)}, LaunchError, r"launch_dims is \(2, -3\); expected a non-negative integer"),
    ({"launch_dims": 6 / 2}, LaunchError, "launch_dims is 3.0; expected .*Write // in place of /"),
    ({"launch_dims": "3"}, LaunchError, "launch_dims is '3'; expected"),
    ({"launch_dims": True}, LaunchError, "launch_dims is True; expected"),
    ({"launch_dims": (2, None)}, LaunchError, r"launch_dims is \(2, None\); expected"),
    ({"launch_dims": ()}, LaunchError, r"launch_dims is \(\), of 0 dimensions; .*give 1 for it"),
    ({"launch_dims": (1, 2, 3, 4, 5)}, LaunchError, "of 5 dimensions; expected .* a tuple of 1 to 4"),
    ({"launch_dims": {3}}, LaunchError, r"launch_dims is \{3\}; expected"),
    ({"block_dim": 0}, LaunchError, "block_dim must be positive and at most 1024, and is 0"),
    ({"block_dim": 1025}, LaunchError, "block_dim must be positive and at most 1024, and is 1025"),
    ({"block_dim": -1}, LaunchError, "block_dim must be positive and at most 1024, and is -1"),
    ({"block_dim": 64.0}, StaticArgumentError, "block_dim must be an integer or None, and is 64.0"),
    ({"block_dim": (64,)}, StaticArgumentError, r"block_dim must be an integer or None, and is \(64,\)"),
    ({"block_dim": True}, StaticArgumentError, "block_dim must be an integer or None, and is True"),
    ({"output_init": "0"}, LaunchError, "output_init has '0' of type str; expected a number"),
    ({"output_init": np.ones(2)}, LaunchError, "output_init has array.*expected a number"),
    (
        {"output_init": [0], "input_output_aliases": {0: 0}},
        AliasError,
        "output 0 begins with the values of input 0.*Give None for it",
    ),
    ({"vmap_method": "parallel"}, VmapMethodError, "unknown vmap_method 'parallel'; allowed: .*native"),
    ({"input_output_aliases": 0}, AliasError, r"input_output_aliases is 0; expected \{input: output, ...\}"),
    ({"input_output_aliases": {0: "out"}}, AliasError, r"expected \{input: output, ...\}"),
    ({"has_side_effect": 1}, ArgumentError, "has_side_effect is 1; allowed: True or False"),
    ({"sharding_rule": "i i"}, ShardingRuleError, "sharding_rule is 'i i'; expected"),
    ({"reference": 3}, KernelTypeError, "reference"),
    ({"outs": 3}, OutputSpecError, r"outs\[0\] is 3; expected an object with a shape and a dtype"),
    ({"outs": None}, OutputSpecError, r"outs\[0\] is None; expected"),
    ({"outs": [Struct((3,), F32), F32]}, OutputSpecError, r"outs\[1\] is"),
]


@pytest.mark.parametrize(("options", "error", "text"), OPTIONS, ids=["-".join(options) for options, *_ in OPTIONS])
def test_an_invalid_option_is_refused_when_the_kernel_is_wrapped(options, error, text):
    with pytest.raises(error, match=f"(?s)copy: .*{text}"):
        warp_kernel(copy, **{"outs": same, **options})


TRACED = [
    (
        {"launch_dims": lambda: 3},
        ArityError,
        "launch_dims is a function, called with the 1 inputs' shape/dtype structs",
    ),
    ({"launch_dims": lambda x: x.shape[0] / 2}, LaunchError, "launch_dims returned 1.5; expected .*Write //"),
    ({"launch_dims": lambda x: None}, LaunchError, "launch_dims returned None; expected a non-negative integer"),
    ({"launch_dims": lambda x: ()}, LaunchError, r"launch_dims returned \(\), of 0 dim.*give 1 for it"),
    ({"launch_dims": lambda x: (-1, 2)}, LaunchError, r"launch_dims returned \(-1, 2\); expected"),
    ({"launch_dims": 2**32}, LaunchError, r"the launch has \(4294967296,\) threads; .*up to 4294967295.*Give fewer"),
    ({"launch_dims": (2**31 - 1,) * 3}, LaunchError, "up to .* in all.*Give fewer"),
    ({"output_init": [1, 2]}, LaunchError, "output_init has 2 values for 1 outputs"),
    ({"output_init": {"a": 1}}, LaunchError, "output_init is a PyTreeDef.*the structure of outs"),
    ({"output_init": 1j}, LaunchError, "output_init is .*1j.* for output 0, but its dtype float32 does not have that"),
    ({"input_output_aliases": {0: 1}}, AliasError, "0: 1, but there is no output 1"),
    ({"input_output_aliases": {1: 0}}, AliasError, "1: 0, but there is no input 1"),
    ({"input_output_aliases": {0: 0}, "outs": lambda x: Struct((4,), F32)}, AliasError, "share memory"),
    ({"outs": lambda: None}, ArityError, "outs is a function, called with the 1 inputs"),
    ({"outs": lambda x: None}, OutputSpecError, r"outs\[0\] is None; expected"),
    (
        {"outs": lambda x: Struct((3,), jnp.int32)},
        DtypeError,
        "'out' .output 0., .*float32, got int32.*Give outs the dtype",
    ),
    ({"outs": lambda x: Struct((3, 1), F32)}, InputError, r"'out' .output 0., expected 1 dimensions, got 2: \(3, 1\)"),
    (
        {"outs": lambda x: (x, x)},
        ArityError,
        r"gives 1 input .* outs describes 2 outputs. Too many: .* arrays \(x, out",
    ),
    ({"outs": (), "has_side_effect": True}, ArityError, r"gives 1 input .* outs describes 0 outputs. Missing: out\."),
    ({"outs": lambda x: ()}, OutputSpecError, "outs describes no output.*has_side_effect=True"),
    ({"outs": lambda x: {"y": x}}, OutputSpecError, r"a dictionary with the keys \['y'\].*\['out'\]"),
    ({"outs": lambda x: [{"out": x}]}, OutputSpecError, r"a dictionary with the keys \['out'\]"),
    ({"outs": Struct((3,), jnp.complex64)}, DtypeError, "expected float32, got complex64"),
    ({"sharding_rule": "i j -> i"}, ShardingRuleError, "sharding_rule"),
]


@pytest.mark.parametrize(("options", "error", "text"), TRACED, ids=["-".join(options) for options, *_ in TRACED])
def test_an_option_that_does_not_fit_a_call_is_refused_while_it_is_traced(options, error, text):
    run = warp_kernel(copy, **{"outs": same, **options})
    with pytest.raises(error, match=f"(?s)copy: .*{text}"):
        jax.eval_shape(run, X)


def test_64_bit_outputs_need_jaxs_setting():
    @wp.kernel
    def double(x: wp.array(dtype=float), out: wp.array(dtype=wp.float64)):
        pass

    with pytest.raises(OutputSpecError, match=r"double: .*float64.*jax_enable_x64"):
        jax.eval_shape(warp_kernel(double, Struct((3,), np.float64)), X)


# Calls


CALLS = [
    ((), {}, ArityError, r"the call gives 0 inputs .*Missing: x\."),
    ((X, X), {}, ArityError, r"2 parameters \(x, out\); the call gives 2 inputs.*outs describes 1 output. Too many"),
    ((X,), {"y": 1}, ArityError, r"no parameter 'y'; the kernel has \(x, out\)"),
    ((), {"x": X}, ArityError, "'x' is an array and .* by position"),
    ((np.ones((3, 1), "f4"),), {}, InputError, r"argument 'x' \(input 0\), expected 1 dimensions, got 2: \(3, 1\)"),
    ((np.arange(3),), {}, DtypeError, r"'x' \(input 0\), expected float32, got int32.*astype\('float32'\)"),
    ((jnp.ones(3, "bfloat16"),), {}, DtypeError, "expected float32, got bfloat16"),
    ((jnp.ones(3, "complex64"),), {}, DtypeError, "expected float32, got complex64"),
    ((jax.random.key(0),), {}, DtypeError, "extended dtype"),
    (([1.0, 2.0],), {}, InputError, "expected an array of numbers.*jnp.asarray"),
    ((None,), {}, InputError, "input 0 is None of type NoneType"),
    (("one",), {}, InputError, "input 0 is 'one' of type str"),
]


@pytest.mark.parametrize(("inputs", "static", "error", "text"), CALLS, ids=[str(case[:2])[:40] for case in CALLS])
def test_a_call_that_does_not_fit_the_kernel(inputs, static, error, text):
    run = warp_kernel(copy, lambda *xs: Struct((3,), F32))
    with pytest.raises(error, match=f"(?s)copy: .*({text})"):
        run(*inputs, **static)
    assert_array_equal(run(X), X)


ELEMENTS = [
    ((np.ones((2, 4), "f4"), np.ones((1, 1, 2, 2), "f2")), r"'x' \(input 0\), expected \(3,\), got \(4,\): .* a vec3f"),
    ((np.ones((2, 3), "f4"), np.ones((1, 1, 2, 3), "f2")), r"'m' \(input 1\), expected \(2, 2\), got \(2, 3\)"),
    (
        (np.ones((2, 3, 3), "f4"), np.ones((1, 1, 2, 2), "f2")),
        r"expected 2 dimensions \(1 of the array and 1 of its el",
    ),
    (
        (np.ones((2, 3), "f4"), np.ones((1, 2, 2), "f2")),
        r"expected 4 dimensions \(2 of the array and 2 of its elements",
    ),
    ((np.ones((2, 3), "f4"), np.ones((2, 2), "f2")), "expected 4 dimensions"),
]


@pytest.mark.parametrize(("inputs", "text"), ELEMENTS)
def test_dimensions_of_vectors_and_matrices(inputs, text):
    with pytest.raises(InputError, match=f"turn: .*{text}"):
        warp_kernel(turn, lambda x, m: x)(*inputs)
    with pytest.raises(DtypeError, match="expected float16, got float32"):
        warp_kernel(turn, lambda x, m: x)(np.ones((2, 3), "f4"), np.ones((1, 1, 2, 2), "f4"))


# Static scalars

run_fill = warp_kernel(fill, Struct((2,), jnp.int32), launch_dims=2)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**31, "is 2147483648; its parameter takes int32: expected an integer from -2147483648 to 2147483647"),
        (-(2**31) - 1, "is -2147483649; its parameter takes int32"),
        (1.0, "is 1.0; its parameter takes int32: expected an integer"),
        (np.float32(2), "is 2.0; its parameter takes int32"),
        (float("nan"), "is nan; its parameter takes int32"),
        ("1", "is '1' of type str; allowed: bool, int"),
        (None, "is None of type NoneType"),
        (1j, "is 1j of type complex"),
        (np.complex64(1), "is .*; its parameter takes int32: expected an integer"),
        (2**63, "is 9223372036854775808; its parameter takes int32"),
        (2**64, "is 18446744073709551616 of type int; allowed: "),
    ],
    ids=repr,
)
def test_a_scalar_that_the_parameter_does_not_take(value, text):
    with pytest.raises(StaticArgumentError, match=rf"fill: the (static )?scalar 'value' {text}"):
        run_fill(value=value)
    assert_array_equal(run_fill(value=-(2**31)), [-(2**31)] * 2)


def scalar_kernel(dtype):
    @wp.kernel(module=wp.get_module(f"{__name__}.scalars"))
    def takes(value: dtype, out: wp.array(dtype=int)):
        out[0] = 1

    return takes


@pytest.mark.parametrize(
    ("dtype", "value", "takes"),
    [
        (wp.uint8, 256, "uint8"),
        (wp.uint64, -1, "uint64"),
        (wp.bool, 2, "bool"),
        (wp.bool, 1.0, "bool"),
        (wp.float16, 1e5, "float16"),
        (wp.bfloat16, 1e39, "bfloat16"),
        (wp.float32, -1e39, "float32"),
        (Any, 2**31, "int32, because it is generic"),
        (Any, 1e39, "float32, because it is generic"),
    ],
)
def test_no_scalar_becomes_another_number(dtype, value, takes):
    run = warp_kernel(scalar_kernel(dtype), Struct((1,), jnp.int32), launch_dims=1)
    with pytest.raises(StaticArgumentError, match=f"takes: .*{re.escape(str(value))}; its parameter takes {takes}"):
        run(value=value)


def test_scalars_are_given_by_keyword_while_tracing():
    with pytest.raises(StaticArgumentError, match=r"'value' must be a static value, but is traced.*static_argnames"):
        jax.jit(lambda v: run_fill(value=v))(3)
    with pytest.raises(StaticArgumentError, match=r"fill: 'value' is an array, float64\[1\], and is passed by keyword"):
        run_fill(value=np.ones(1))
    with pytest.raises(ArityError, match=r"2 parameters \(value, out\); .* gives 1 input .*Missing: value=\.\.\."):
        run_fill(np.ones(2, "i4"))
    with pytest.raises(ArityError, match=r"gives 0 inputs .* 1 output. Missing: value=\.\.\."):
        run_fill()
    with pytest.raises(ArityError, match=r"gives 2 inputs .*Too many: it has 1 parameter for arrays \(out\)"):
        run_fill(np.ones(2, "i4"), np.ones(2, "i4"), value=1)
    with pytest.raises(ArityError, match=r"copy: 'x' is an array and .* by position"):
        warp_kernel(copy, Struct((3,), F32), launch_dims=3)(x=1.0)


# Lowering: where the program runs, derivatives, symbolic shapes


def test_without_inputs_launch_dims_must_be_given():
    with pytest.raises(LaunchError, match=r"fill: Failed to determine launch dimensions.*Give launch_dims="):
        warp_kernel(fill, Struct((2,), jnp.int32))(value=1)


def test_there_is_no_derivative_and_no_kernel_for_a_tpu():
    with pytest.raises(DifferentiationError, match=r"copy: .*reference="):
        jax.grad(lambda x: run_copy(x).sum())(X)
    with pytest.raises(PlatformError, match="copy: this kernel runs on cpu and cuda; the program is compiled for tpu"):
        jax.jit(run_copy).trace(X).lower(lowering_platforms=("tpu",))


def test_symbolic_shapes_are_no_launch():
    (n,) = jax.export.symbolic_shape("n")
    with pytest.raises(ExportError, match=r"copy: input 0 has the symbolic shape \(n,\).*export the program for each"):
        jax.export.export(jax.jit(run_copy))(Struct((n,), F32))


@pytest.mark.parametrize("output_dims", [None, 8, {"out": 8}])
def test_symbolic_shapes_are_no_call_of_a_function(output_dims):
    def function(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        wp.launch(copy, dim=x.shape, inputs=[x], outputs=[out])

    (n,) = jax.export.symbolic_shape("n")
    run = jax.jit(jax_callable(function, output_dims=output_dims))
    with pytest.raises(ExportError, match=r"function: input 0 has the symbolic shape \(n,\).*export the program"):
        jax.export.export(run)(Struct((n,), F32))


def test_more_elements_than_warps_arrays_have():
    many = Struct((2**31,), F32)  # lowered and never run
    with pytest.raises(LaunchError, match=r"copy: an array has an extent beyond 2147483647, .* more dimensions"):
        jax.jit(warp_kernel(copy, lambda x: Struct((3,), F32), launch_dims=3)).lower(many)


def test_warps_refusal_of_a_launch_is_a_launch_error(monkeypatch):
    def refuse(*args, **options):
        raise RuntimeError("not today")

    monkeypatch.setattr(wp, "launch", refuse)
    with pytest.raises(LaunchError, match=r"copy: Warp does not launch the kernel with dim=\(7,\): not today"):
        run_copy(np.ones(7, "f4"))


def test_a_warp_without_cpu_support(monkeypatch):
    monkeypatch.setattr(wp, "is_cpu_available", lambda: False)

    @wp.kernel(module="unique")
    def other(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        pass

    with pytest.raises(DeviceError, match=r"other: .*does not include CPU support.*pip install warp-lang"):
        warp_kernel(other, same)(X)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_without_a_gpu_a_program_for_one_is_refused():
    with pytest.raises(DeviceError, match=r"GPU|driver"):
        jax.jit(run_copy).trace(X).lower(lowering_platforms=("cuda",))


# Kernels of operators


def test_the_error_of_an_unwrapped_kernel_names_the_wrapper():
    op = XLACustomKernel("an_unwrapped_warp_kernel", replace=True)
    op.def_kernel("mine", "cpu", lambda outs: copy)
    with pytest.raises(GeneratorError, match=r"with output parameters.*Wrap it with xlakernel\.warp\.warp_kernel"):
        op(jnp.ones(1), outs=Struct((1,), F32))


def test_warps_own_function_of_jax_arrays_may_be_a_kernel():
    op = XLACustomKernel("warps_own_function", replace=True)
    op.def_kernel("theirs", "cpu", lambda outs: wp.jax_experimental.jax_kernel(copy))
    traced = jax.jit(lambda x: op(x, outs=Struct((1,), F32))).trace(jnp.ones(1))
    assert traced.out_info.shape == (1,)
