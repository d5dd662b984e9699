"""Fits the simulated engine's pace to a real vLLM, and says how far off it is.

python -m tests.engines.calibration [--write]

loads.py       what both engines are asked
measuring.py   how long the real one takes
simulating.py  how long the simulated one takes, and what its steps computed meanwhile
fitting.py     the pace with the least error
report.py      how far off
"""
