"""Quotas: requests, tokens, concurrency and money; admitted atomically, settled to what was used.

Redis has the sums; each process tells it its own positions in absolute terms, so that telling them
again, after a lost reply or after Redis lost its data, changes nothing.
"""
