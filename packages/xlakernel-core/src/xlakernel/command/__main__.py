"""``python -m xlakernel.command``, the same as the command ``xlakernel``."""

import sys

from .command_line import main

sys.exit(main())
