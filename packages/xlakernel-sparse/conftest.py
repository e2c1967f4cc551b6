"""What is collected: the kernels of a backend only where that is installed."""

import importlib.util

ROOMS = {"kernels/cuda": "xlakernel.cuda", "kernels/warp": "xlakernel.warp", "networks/kernels/cuda": "xlakernel.cuda"}

collect_ignore = [
    f"src/xlakernel/sparse/{room}" for room, needed in ROOMS.items() if importlib.util.find_spec(needed) is None
]
