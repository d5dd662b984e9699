"""Tenancy: organisations, their teams, the teams' keys, and what each of them may do and spend."""
