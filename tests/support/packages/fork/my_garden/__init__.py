"""A package in the layout of Model Garden, which knows nothing of this project."""
