"""``python -m xlakernel.core`` is the command ``xlakernel``."""

import sys

from xlakernel.command import main

sys.exit(main())
