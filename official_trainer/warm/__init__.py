"""The warm server: the process that a user's commands are forked from, with TensorFlow imported.

Owns: the server and its clients, what it imports before. Does not own: what a forked process runs
(`processes/commands.py`).
"""
