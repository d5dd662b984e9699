"""The worker: runs one vLLM beside its hardware and keeps it in the pool while it is well.

worker      the life of a replica, from the check of its weights to its leave
model       what the worker must know of a model version
manifest    the files of a model's weights, and whether they are what they should be
command     a model version as vLLM's command line (pure)
process     the engine's processes, all of which end with the worker's
guard       the small program between worker and engine that sees to that
client      asks an engine how it is
metrics     what an engine's metrics say (pure)
vitals      whether an engine is well, silent or hung (pure)
restarts    when a crashed engine starts again, and when no more (pure)
lease       tells the pool, again and again
gpu         memory of the GPUs, if there are any
"""
