"""Fault drills: what the service promises, broken on purpose in real processes. `python -m tests.faults --help`."""
