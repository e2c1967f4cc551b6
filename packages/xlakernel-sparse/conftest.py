"""What is collected: the kernels of a backend only where that is installed."""

import importlib.util

ROOMS = {"cuda": "xlakernel.cuda", "warp": "xlakernel.warp"}

collect_ignore = [
    f"src/xlakernel/sparse/kernels/{room}" for room, needed in ROOMS.items() if importlib.util.find_spec(needed) is None
]
