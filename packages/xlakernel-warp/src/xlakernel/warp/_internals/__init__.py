"""Warp's objects beyond their documented interface: every use of these stands here."""
