"""``python -m xlakernel.command`` is the command ``xlakernel``."""

import sys

from .command_line import main

sys.exit(main())
