"""Predictions in files: shards that are complete or absent, and the manifest that lists them.

Owns: the files of mode `predict`. Does not own: computing predictions (`engine/inference.py`).
"""
