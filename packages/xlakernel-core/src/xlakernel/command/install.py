"""Installation commands of our packages, the same in the command's output and in the packages' errors."""

from __future__ import annotations


def install_command(package: str, cuda_extra: str = "cuda13") -> str:
    """Return the command that installs one of our packages with all that its kernels need.

    Args:
      package: its name in the namespace, such as ``"warp"``.
      cuda_extra: the extra for the CUDA of this machine.

    Example:
      >>> install_command("warp")
      'pip install xlakernel-warp'
      >>> install_command("cuda", "cuda12")
      'pip install "xlakernel-cuda[cuda12]"'
    """
    # Warp brings the libraries of CUDA that it needs; numba-cuda does not.
    return f'pip install "xlakernel-cuda[{cuda_extra}]"' if package == "cuda" else f"pip install xlakernel-{package}"
