"""``python -m xlakernel``, the same as the command ``xlakernel``."""

import sys

from xlakernel.command import main

sys.exit(main())
