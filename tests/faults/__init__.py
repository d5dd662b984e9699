"""Fault drills: whatever an upstream does wrong, the caller hears the truth, and one record is
kept."""
