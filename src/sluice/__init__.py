"""Sluice: an LLM gateway that meters what it serves."""

__version__ = "0.1.0"
