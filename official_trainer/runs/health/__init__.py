"""How a run is doing: where its time goes, and whether it makes progress.

Owns: the time account, the watchdog and its report. Does not own: ending a run for another cause (`stopping.py`).
"""
