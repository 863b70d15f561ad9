"""Whether a command printed what its page shows."""

import re

NUMBER = re.compile(r"\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?")


def shows(shown, said):
    """Whether lines are as shown, where a line `…` stands for any lines and `…` in a line for any text."""
    pattern = "".join(r"(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in said)) is not None


def masked(lines):
    """Returns lines without their numbers, which differ from run to run and from machine to machine."""
    return [re.sub(r"\s+", " ", NUMBER.sub("#", line)) for line in lines]
