"""The fleet simulation: a trace, gateways that run the pool's own code, simulated replicas.

All in virtual time, from one seed: the same arguments give the same figures.
"""
