"""The command ``xlakernel``: what is installed here, what does not go together, what operators offer and cost.

It lies beside `xlakernel.core`, not in it, so that it starts without JAX: it also runs where JAX cannot be imported.
"""

from .command_line import main as main
