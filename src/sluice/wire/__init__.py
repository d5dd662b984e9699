"""Neutral types and codecs of the wire formats. Pure: no I/O, imports nothing of ours."""
