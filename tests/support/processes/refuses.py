"""A module that cannot be imported."""

raise ValueError("no")
