"""A job as processes on this machine.

Owns: starting processes, watching them, ending them together, starting them again. Does not own: what a job is
(`launch/spec.py`), other machines (`launch/targets/`).
"""
