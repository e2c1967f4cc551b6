"""All uses of Warp's undocumented interfaces."""
