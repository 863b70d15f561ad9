"""The verb `serve`.

Owns: its flags, and what it prints. Does not own: the server (`formats/serving.py`).
"""
