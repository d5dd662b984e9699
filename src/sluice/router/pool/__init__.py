"""The self-hosted pool: which replica serves a request, when, and whether it is accepted at all.

Everything here decides on values. Time comes in as seconds, randomness is seeded, and nothing
talks to a network: the gateway and the fleet simulation drive the same code.
"""
