"""A library of CUDA C kernels that xlakernel has no support for, and functions that launch them inside JAX."""

import ctypes
import inspect

import jax
import pytest

from xlakernel.core.backend import Kernel, kernel_function

SOURCE = rb"""
extern "C" __global__ void axpy(const float* x, const float* y, float* out, float alpha, long n) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) out[i] = alpha * x[i] + y[i];
}
struct Vector { long before; float* data; long n; };
extern "C" __global__ void twice(Vector x, Vector out) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < out.n) out.data[i] = 2 * x.data[i];
}
__device__ unsigned arrived;
__device__ void wait_for_the_grid() {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    unsigned all = (atomicAdd(&arrived, 1) / gridDim.x + 1) * gridDim.x;
    while (*(volatile unsigned*)&arrived < all) {}
    __threadfence();
  }
  __syncthreads();
}
extern "C" __global__ void neighbour(float* x, volatile float* out, long n) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i];
  wait_for_the_grid();
  float next = i < n ? out[(i + 1) % n] : 0;
  wait_for_the_grid();
  if (i < n) out[i] += next;
}
extern "C" __global__ void cluster(float* out, long n) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  unsigned size;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  if (i < n) out[i] = size;
}
extern "C" __global__ void shared(float* out, int n) {
  extern __shared__ float memory[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) memory[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) { float total = 0; for (int i = 0; i < n; ++i) total += memory[i]; out[0] = total; }
}
"""
N = 4096


class Library:
    """Kernels of one module, launched by the driver's own functions: a library without support in xlakernel."""

    def __init__(self):
        from cuda.bindings import driver, nvrtc

        from xlakernel.core.gpu.driver import check, context_of, usual_device

        self.driver, self.check = driver, check
        program = nvrtc.nvrtcCreateProgram(SOURCE, b"kernels.cu", 0, None, None)[1]
        options = [b"--gpu-architecture=sm_90"]
        if int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]):
            log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(log.decode())
        self.image = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
        nvrtc.nvrtcGetCUBIN(program, self.image)
        self.library = check(driver.cuLibraryLoadData(self.image, None, None, 0, None, None, 0))
        self.modules = {}
        self.context_of, self.usual_device = context_of, usual_device

    def kernel(self, name):
        return self.check(self.driver.cuLibraryGetKernel(self.library, name.encode()))

    def function(self, name):
        """Return the kernel as a function of the current context alone, as older libraries load it."""
        context = int(self.check(self.driver.cuCtxGetCurrent()))
        if context not in self.modules:
            self.modules[context] = self.check(self.driver.cuModuleLoadData(self.image))
        return self.check(self.driver.cuModuleGetFunction(self.modules[context], name.encode()))

    def launch(self, kernel, stream, *arguments, grid=(N + 255) // 256, block=256, shared=0, attributes=()):
        values = tuple(value for value, _ in arguments)
        kinds = tuple(kind for _, kind in arguments)
        config = self.driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes, config.hStream = shared, self.driver.CUstream(stream)
        if attributes:
            config.attrs, config.numAttrs = list(attributes), len(attributes)
        self.check(self.driver.cuLaunchKernelEx(config, kernel, (values, kinds), 0))

    def attribute(self, name, **fields):
        attribute = self.driver.CUlaunchAttribute()
        attribute.id = getattr(self.driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
        for field, value in fields.items():
            setattr(attribute.value, field, value)
        return attribute

    def axpy(self, stream, x, y, out, alpha=2.0, kernel=None, n=N):
        pointers = [(p, ctypes.c_void_p) for p in (x, y, out)]
        kernel = kernel or self.kernel("axpy")
        self.launch(kernel, stream, *pointers, (alpha, ctypes.c_float), (n, ctypes.c_long))


@pytest.fixture(scope="module")
def cuda():
    library = Library()
    with library.context_of(library.usual_device()):
        yield library


class Recorded(Kernel):
    platforms = ("cuda",)

    def __init__(self, name, launch, **options):
        self.name, self.launch, self.options = name, launch, options

    def target(self, inputs, outs, static, *, ordered=False, debug=False, levels=0):
        from xlakernel.core.gpu.launchable import Launchable
        from xlakernel.core.gpu.plan import arrays_of
        from xlakernel.core.gpu.target import register

        name = f"test/{self.name}({inputs}, {outs}){id(self)}"
        launchable = Launchable(
            name, self.name, "here:1", arrays_of(inputs, outs), self.launch, closed_over=[self.launch], **self.options
        )
        return register(launchable, debug=debug)


def _wrap(launch, outs, inputs=1, **options):
    kernel = Recorded(launch.__name__, launch, **options)
    parameters = {f"p{k}": inspect.Parameter.empty for k in range(inputs + len(jax.tree.leaves(outs)))}
    return kernel_function(
        kernel, parameters, outs, vmap_method="native", input_output_aliases=None, has_side_effect=False
    )


@pytest.fixture(scope="session")
def wrap():
    """Return a function that makes one of JAX arrays from a function that launches."""
    return _wrap
