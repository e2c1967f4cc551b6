"""The command ``xlakernel``: the state of an installation, and the backends of its operators.

It lies beside `xlakernel.core`, not in it, so that it starts without JAX, even if JAX cannot be imported.
"""

from .command_line import main as main
