"""What can go wrong in a benchmark run."""


class BenchError(Exception):
    """A figure could not be measured, or must not be trusted."""
