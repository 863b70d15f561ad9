"""Runs beside each other: tables and a page for people.

Owns: what is compared, and how it is shown. Does not own: reading runs (`runs/`) and sweeps (`sweeps/`).
"""
