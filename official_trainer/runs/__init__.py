"""The modes of a run, and what its directory holds.

Owns: what may start, what each mode writes, how a run ends. Does not own: steps and the loop (`engine/`), which it
builds and calls.
"""
