"""Durability drills: real processes, killed and stopped under load; then the books are compared."""
