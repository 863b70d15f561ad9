"""What a command says of an error in the user's code: the line, the phase, the batch, what it probably means.

Owns: finding the user's lines behind what TensorFlow and Keras make of an error (`frames.py`), the meaning of frequent
messages (`meanings.py`), the report and its exit code (`report.py`).
Does not own: noting what was being done (`user_code.py`), printing (`cli/dispatch.py`), and the messages of errors that
are meant for users as they are (`UserError`).
"""
