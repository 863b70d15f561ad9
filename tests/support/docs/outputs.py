"""Whether a command printed what its page shows."""

import re

NUMBER = re.compile(r"\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?")


def shows(shown, said):
    """Whether lines are as shown, where a line `…` stands for any lines and `…` in a line for any text, or for none."""
    patterns = (re.escape(line).replace(r"…\ ", r"(?:.*\ )?").replace("…", ".*") for line in shown)
    pattern = "".join(r"(?:.*\n)*" if each == ".*" else rf"{each}\n" for each in patterns)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in said)) is not None


def masked(lines):
    """Returns lines without their numbers, which differ from run to run and from machine to machine."""
    return [re.sub(r"\s+", " ", NUMBER.sub("#", line)) for line in lines]
