"""How a run is doing: where its time goes, whether it stalls, which of its processes is late.

Owns: the time account, the watchdog and their reports. Does not own: ending a run for another cause (`stopping.py`).
"""
