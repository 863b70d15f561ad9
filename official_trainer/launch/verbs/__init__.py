"""The verbs `launch` and `job`.

Owns: their flags, and what they print. Does not own: jobs and schedulers (`launch/`), the processes of this machine
(`processes/`).
"""
