"""The `diff` blocks of a page: a file of the page with some lines changed is another file.

--- one.py
+++ other.py
@@
 a line that stays
-a line that goes
+a line that comes
"""

import re

_HEAD = re.compile(r"--- (\S+)\n\+\+\+ (\S+)\n@@\n")


def names(diff):
    """Returns the file that a block changes and the file that comes of it; None if it names none."""
    found = _HEAD.match(diff)
    return (found[1], found[2]) if found else None


def changed(text, diff):
    """Returns `text` with the changes of a block; each has to fit in exactly one place.

    Raises:
      ValueError: one does not.
    """
    _, *hunks = re.split(r"^@@\n", diff, flags=re.MULTILINE)
    text = f"\n{text}"
    for hunk in hunks:
        lines = hunk.splitlines()
        old, new = (_side(lines, sign) for sign in "-+")
        if text.count(old) != 1:
            raise ValueError(f"these lines are there {text.count(old)} times, not once:{old}")
        text = text.replace(old, new)
    return text[1:]


def _side(lines, sign):
    return "\n" + "".join(f"{line[1:]}\n" for line in lines if line[:1] in (" ", "", sign))
