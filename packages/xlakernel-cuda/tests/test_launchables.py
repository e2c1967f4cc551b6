"""Description of a launch: arrays, types, scalars, batches, names."""

import gc
import json
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba import cuda
from numba.cuda import types

from xlakernel.core.backend import Target
from xlakernel.core.call.scalars import Scalar
from xlakernel.core.errors import DtypeError, ExportError
from xlakernel.core.structs import Struct
from xlakernel.cuda import numba_cuda_kernel
from xlakernel.cuda._kernels import compile as _compile
from xlakernel.cuda._kernels.arrays import array_type

F32 = Struct((3, 2), jnp.float32)


@cuda.jit
def mixed(n, x, scale, y, out, flag=True):
    i = cuda.grid(1)
    if i < out.size and flag:
        out[i] = scale * x[i] + y[i] + n


def same(x, *_):
    return x


def types_of(launchable):
    return [str(slot.type) for slot in launchable.launch.slots]


@pytest.mark.parametrize(
    ("dtype", "element"),
    [("bool", "bool"), ("float16", "float16"), ("bfloat16", "__nv_bfloat16"), ("complex128", "complex128")]
    + [(f"{kind}{bits}", f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)],
)
@pytest.mark.parametrize("shape", [(), (4,), (2, 0, 3, 1)])
def test_inputs_are_read_only_arrays_of_every_dtype_and_outputs_are_not(
    make_axpy, launchable_of, dtype, element, shape
):
    x = Struct(shape, jnp.dtype(dtype))
    found = types_of(launchable_of(make_axpy(launch_dims=1), [x, x], [x], alpha=2))
    kind = f"array({element}, {len(shape)}d, C)"
    assert found == [f"readonly {kind}", f"readonly {kind}", kind, "readonly array(int64, 0d, C)"]


def test_other_dtypes_are_refused_with_those_that_are_allowed(make_axpy):
    with pytest.raises(DtypeError, match=r"axpy: input 0 has dtype int4.*allowed: bool, .*bfloat16"):
        jax.eval_shape(make_axpy(launch_dims=1), jnp.ones(3, jnp.int4), jnp.ones(3, jnp.int4))


def test_numba_takes_the_type_of_an_argument():
    from xlakernel.cuda._kernels.arrays import Argument

    kind = array_type("bfloat16", 2, "x", readonly=True, shared=True)
    assert cuda.jit(lambda x: None).typeof_pyval(Argument(None, kind)) is kind
    assert kind == types.Array(types.bfloat16, 2, "A", readonly=True)


KINDS = [
    *(
        (True, "bool", "bool[]"),
        (1, "int64", "complex64[]"),
        (1.5, "float64", "complex64[]"),
    ),
    *((np.float32(1), "float32", "float32[]"), (np.uint8(1), "uint8", "uint8[]")),
]


@pytest.mark.parametrize(("value", "dtype", "operand"), KINDS)
def test_scalars_stand_where_their_parameter_does_with_the_type_they_were_given_in(
    launchable_of, value, dtype, operand
):
    run = numba_cuda_kernel(mixed, same, launch_dims=1)
    found = launchable_of(run, [F32, F32], [F32], n=value, scale=2.0, flag=False)
    array, scalar = "array(float32, 2d, C)", "readonly array({}, 0d, C)"
    types_ = [scalar.format(dtype), f"readonly {array}", scalar.format("float64"), f"readonly {array}", array]
    assert types_of(found) == [*types_, scalar.format("bool")]
    assert [slot.number for slot in found.launch.slots] == [3, 0, 4, 1, 5, 2]
    assert [slot.is_scalar for slot in found.launch.slots] == [True, False, True, False, False, True]
    assert str(found.arrays[3]) == f"input 3 ({operand})"


@pytest.mark.parametrize("own", [True, False])
def test_with_a_batch_axis_each_slice_loads_its_scalar(make_axpy, launchable_of, own):
    x = Struct((5, 3), jnp.float32)
    alpha = Scalar("float32", Struct((5,) if own else (1,), np.dtype("float32")))
    found = launchable_of(make_axpy(batch_axis="y"), [x, x], [x], levels=1, alpha=alpha)
    slot = found.launch.slots[3]
    assert (slot.number, slot.shape, slot.shared, slot.is_scalar) == (2, (5,) if own else (), 0 if own else 5, True)
    assert str(slot.type) == f"readonly array(float32, 1d, {'C' if own else 'A'})"
    assert found.launch.dispatcher.py_func.__code__.co_names[-2:] == ("blockIdx", "y")  # its element for the slice


@pytest.mark.parametrize(
    ("input_batch", "output_batch", "shape", "strided"),
    [
        ((), (), (1, 3, 2), False),
        ((5,), (5,), (5, 3, 2), False),
        ((1,), (5,), (3, 2), True),
        ((1, 1), (2, 3), (3, 2), True),
        ((2, 3), (2, 3), (6, 3, 2), False),
        ((1,), (1,), (1, 3, 2), False),
    ],
)
def test_with_a_batch_axis_arrays_have_one_more_dimension(
    make_axpy, launchable_of, input_batch, output_batch, shape, strided
):
    run = make_axpy(batch_axis="z", launch_dims=lambda x, y: x.shape)
    x, out = Struct((*input_batch, 3, 2), jnp.float32), Struct((*output_batch, 3, 2), jnp.float32)
    found = launchable_of(run, [x, out], [out], levels=len(output_batch), alpha=1.0)
    size = int(np.prod(output_batch))
    assert found.launch.geometry.grid == (1, 1, size)
    slot = found.launch.slots[0]
    assert (slot.shape, slot.shared) == (shape, size if strided else 0)
    assert str(slot.type) == f"readonly array(float32, 3d, {'A' if strided else 'C'})"
    shapes = [array.shape for array in found.arrays]
    assert [*shapes[:2], shapes[3]] == [x.shape, out.shape, out.shape]


def test_a_launch_of_no_threads_fills_the_outputs_that_nothing_else_fills(launchable_of):
    options = {"launch_dims": 0, "output_init": [None, 5, None], "input_output_aliases": {0: 2}}
    run = numba_cuda_kernel(cuda.jit(lambda x, a, b, c: None), lambda x: [x, x, x], **options)
    found = launchable_of(run, [F32], [F32, F32, F32])
    assert found.launch.fills == ((1, bytes(4)), (2, np.float32(5).tobytes()))


def test_a_symbolic_shape_is_refused_and_a_symbolic_batch_is_not(make_axpy):
    from jax import export

    n = export.symbolic_shape("n")[0]
    run = make_axpy(launch_dims=7)
    with pytest.raises(ExportError, match=r"symbolic shape \(n,\).*one shape"):
        jax.eval_shape(run, Struct((n,), jnp.float32), Struct((n,), jnp.float32))
    batched = jax.eval_shape(jax.vmap(run), Struct((n, 3), jnp.float32), Struct((n, 3), jnp.float32))
    assert batched.shape == (n, 3)


def test_a_symbolic_batch_has_no_launch_with_a_batch_axis(make_axpy, launchable_of):
    from jax import export

    n = export.symbolic_shape("n")[0]
    batched = Struct((n, 3), jnp.float32)
    with pytest.raises(ExportError, match=r"axpy: the batch has the symbolic size n, and with batch_axis"):
        launchable_of(make_axpy(launch_dims=7, batch_axis="y"), [batched] * 2, [batched], levels=1, alpha=1.0)


# Names


def scaled_by(factor, **options):
    def scaled(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = factor * x[i]

    return cuda.jit(scaled, **options)


def name_of(launchable_of, kernel=None, x=F32, debug=False, levels=0, static=None, **options):
    run = numba_cuda_kernel(kernel or scaled_by(2), same, **{"launch_dims": 6, **options})
    return launchable_of(run, [x], [x], debug=debug, levels=levels, **(static or {})).name


def test_equal_kernels_have_equal_names(launchable_of):
    assert name_of(launchable_of) == name_of(launchable_of, scaled_by(2))
    assert "scaled" in name_of(launchable_of) and "float32[3,2]" in name_of(launchable_of)


DIFFERENCES = {
    "a closure value": lambda: {"kernel": scaled_by(3)},
    "an option": lambda: {"kernel": scaled_by(2, fastmath=True)},
    "registers": lambda: {"kernel": scaled_by(2, max_registers=32)},
    "the shape": lambda: {"x": Struct((2, 3), jnp.float32)},
    "the dtype": lambda: {"x": Struct((3, 2), jnp.int32)},
    "the grid": lambda: {"launch_dims": 600},
    "the block": lambda: {"threads_per_block": 32},
    "shared memory": lambda: {"shared_mem": 4},
    "what outputs begin with": lambda: {"output_init": 0},
    "its number": lambda: {"output_init": 1},
    "debug mode": lambda: {"debug": True},
    "a batch axis": lambda: {"batch_axis": "y"},
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_names_differ_when_anything_does(launchable_of, difference):
    assert name_of(launchable_of) != name_of(launchable_of, **DIFFERENCES[difference]())


def test_the_dtypes_of_scalars_are_part_of_the_name_and_their_values_are_not(make_axpy, launchable_of):
    values = (1, 1.0, True, np.float32(1), np.uint8(1))
    names = [launchable_of(make_axpy(), [F32, F32], [F32], alpha=value).name for value in values]
    assert len(set(names)) == len(values)
    for value, name in ((2, names[0]), (-0.0, names[1]), (False, names[2])):
        assert launchable_of(make_axpy(), [F32, F32], [F32], alpha=value).name == name


def test_a_file_that_is_linked_is_part_of_the_name(launchable_of, tmp_path):
    file = tmp_path / "helper.cu"
    names = set()
    for text in ("one", "two"):
        file.write_text(text)
        names.add(name_of(launchable_of, scaled_by(2, link=[str(file)])))
    assert len(names) == 2


def test_equal_code_is_compiled_by_one_dispatcher_that_is_not_the_users(launchable_of):
    one, other = (numba_cuda_kernel(scaled_by(4), same, launch_dims=n) for n in (6, 7))
    first, second = (launchable_of(run, [F32], [F32]).launch.dispatcher for run in (one, other))
    assert first is second and first is not one.xlakernel.dispatcher


def test_a_deleted_kernel_leaves_the_cache(h200, monkeypatch):
    names = set()
    monkeypatch.setattr(_compile, "register", lambda launchable, **_: names.add(launchable.name) or Target("its name"))
    kernels = [scaled_by(5) for _ in range(3)]
    for kernel in kernels:
        numba_cuda_kernel(kernel, same, launch_dims=6).xlakernel.target([F32], [F32], {})
    references = [weakref.ref(kernel) for kernel in kernels]
    del kernel, kernels
    gc.collect()
    assert len(names) == 1
    assert [reference() for reference in references] == [None] * 3


def test_a_kernel_wrapped_again_has_the_same_target(h200, monkeypatch):
    registered = []
    monkeypatch.setattr(_compile, "register", lambda launchable, **_: registered.append(launchable) or Target("name"))
    kernel = scaled_by(2)
    for extra in (0, 1, 300):  # two of them fit one block
        run = numba_cuda_kernel(kernel, same, launch_dims=lambda x, extra=extra: 6 + extra)
        run.xlakernel.target([F32], [F32], {})
    assert [launchable.launch.geometry.grid for launchable in registered] == [(1, 1, 1), (2, 1, 1)]


def test_a_global_that_changed_makes_another_kernel(launchable_of, monkeypatch):
    monkeypatch.setitem(globals(), "FACTOR", 2)
    kernel = cuda.jit(uses_a_global)
    before = name_of(launchable_of, kernel)
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert name_of(launchable_of, kernel) != before


def test_a_kernel_has_present_values_whatever_was_compiled_before(launchable_of, monkeypatch):
    monkeypatch.setitem(globals(), "FACTOR", 2)
    run = numba_cuda_kernel(cuda.jit(uses_a_global), same, launch_dims=1)
    row, rows, whole = (Struct(*x) for x in (((3,), jnp.float32), ((4,), jnp.float32), ((4,), jnp.int32)))
    first = launchable_of(run, [row], [row]).launch
    assert launchable_of(run, [rows], [rows]).launch.dispatcher is first.dispatcher
    monkeypatch.setitem(globals(), "FACTOR", 3)
    for struct in (row, rows, whole):
        assert launchable_of(run, [struct], [struct]).launch.dispatcher is not first.dispatcher
    monkeypatch.setitem(globals(), "FACTOR", 2)
    assert launchable_of(run, [rows], [rows]).launch.dispatcher is first.dispatcher


def device_helper(function, **options):
    return cuda.jit(device=True, **options)(function)


@pytest.mark.parametrize("make", [device_helper, numba.njit])
def test_a_kernel_calls_copies_of_device_functions(launchable_of, monkeypatch, make):
    """Numba CUDA keeps in each the code of its first compilation."""
    monkeypatch.setitem(globals(), "FACTOR", 2)

    @make
    def twofold(value):
        return value * FACTOR

    @cuda.jit
    def kernel(x, out):
        out[0] = twofold(x[0])

    run = numba_cuda_kernel(kernel, same, launch_dims=1)
    names = [launchable_of(run, [F32], [F32]).name]
    own = launchable_of(run, [F32], [F32]).launch.dispatcher.py_func
    copy = own.__closure__[0].cell_contents
    assert copy is not twofold and copy.py_func.__globals__["FACTOR"] == 2
    first = copy
    monkeypatch.setitem(globals(), "FACTOR", 3)
    after = launchable_of(run, [F32], [F32])
    copy = after.launch.dispatcher.py_func.__closure__[0].cell_contents
    assert copy.py_func.__globals__["FACTOR"] == 3 and copy is not first
    assert after.name not in names


FACTOR = 1


def uses_a_global(x, out):
    out[0] = FACTOR * x[0]


@pytest.mark.process
def test_names_are_equal_across_processes(launchable_of, tmp_path):
    (tmp_path / "kernels_of_a_user.py").write_text(
        "from numba import cuda\nimport math\nSCALE = 2.0\n\n"
        "@cuda.jit(device=True)\ndef square(v):\n    return v * v\n\n"
        "@cuda.jit\ndef kernel(x, out):\n    i = cuda.grid(1)\n    if i < out.size:\n"
        "        out[i] = SCALE * square(math.sin(x[i]))\n"
    )
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import json, jax, jax.numpy as jnp
import kernels_of_a_user
from xlakernel.cuda import numba_cuda_kernel
from xlakernel.cuda._kernels import device as _device
_device.shared_mem_limits = lambda: {{"g": 232448}}
run = numba_cuda_kernel(kernels_of_a_user.kernel, lambda x: x, launch_dims=6)
x = jax.ShapeDtypeStruct((3, 2), jnp.float32)
launchable = run.xlakernel.launchable([x], [x], {{}})
print(json.dumps([launchable.name, launchable.recipe().data["checks"]]))
"""
    said = [
        json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert said[0] == said[1]
    assert said[0][0].startswith("xlakernel.cuda/kernels_of_a_user.kernel(")
