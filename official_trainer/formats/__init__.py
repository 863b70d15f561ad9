"""A model in the formats that people serve, each compared with it: LiteRT, ONNX, Keras's files.

Owns: converting, reading a file back in a process of its own, the comparison, the contract of inputs and outputs.
Does not own: the SavedModel, and that an export is whole or absent (`tasks/export.py`).

Imports nothing: `kinds.py` is read by commands that need neither TensorFlow nor a library of a format.
"""
