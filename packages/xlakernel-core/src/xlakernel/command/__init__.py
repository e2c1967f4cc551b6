"""The command ``xlakernel``: the state of an installation, and the backends of its operators.

This package is not part of `xlakernel.core`, because the command must start even if JAX cannot be imported.
"""

from .command_line import main as main
