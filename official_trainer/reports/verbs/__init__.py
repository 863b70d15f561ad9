"""The verbs `compare`, `report` and `find-lr`.

Owns: their flags, and what they print. Does not own: what is compared, and the pages (`reports/`).
"""
