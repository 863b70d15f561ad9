"""The verb `sweep`.

Owns: its flags, and what it prints. Does not own: sweeps and their tables (`sweeps/`).
"""
