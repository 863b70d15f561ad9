"""What a command says of an error in the user's code: the line, the phase, the batch, what it probably means.

Owns: the report and its exit code (`report.py`), the meaning of frequent messages (`meanings.py`).
Does not own: noting what was being done (`user_code.py`), printing (`cli/dispatch.py`), and the messages of errors that
are meant for users as they are (`UserError`).
"""
