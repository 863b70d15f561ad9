"""The picture of a terminal in the documentation shows what a run prints."""

import html
import re

import pytest

from docs import generate
from docs.generators import terminal
from tests.support.docs.outputs import masked


def masked_screen(lines):
    """Returns forms of lines on a terminal: without numbers, the bar's length, what was best and was saved."""
    whole = [re.sub("[━╸╺]+ *", "━", line) for line in lines]
    whole = [re.sub(r"^(  \S+) +(\S+).*|^(saved) (ckpt|best).*", r"\1\2\3", line).strip() for line in whole]
    whole = [line.removesuffix(" runs/digits") for line in whole]  # on a line of its own where it does not fit
    return {*masked(line for line in whole if line)}


@pytest.mark.full
def test_the_picture_of_a_terminal_looks_as_a_run_does(tmp_path):
    """Every line in `docs/images/terminal.svg` has a form that a run prints; numbers and times may differ."""
    lines = {}
    drawn = (generate.IMAGES / "terminal.svg").read_text(encoding="utf-8")
    for number, text in re.findall(r'clip-path="url\(#terminal-line-(\d+)\)">(.*?)</text>', drawn):
        lines[int(number)] = lines.get(int(number), "") + html.unescape(text).replace("\xa0", " ")
    prompt, *shown = (lines[number] for number in sorted(lines))
    assert prompt == " ".join(["$ python train.py", *terminal.COMMAND])
    start = next(i for i, line in enumerate(shown) if line.startswith("time: "))
    short = [*terminal.COMMAND, "--config_file=configs/smoke/digits_cnn.yaml"]
    now = [line.plain for line in terminal.screen(short, tmp_path)]
    assert masked_screen(shown[:start]) <= masked_screen(now), "run `python docs/generate.py terminal`\n" + "\n".join(
        now
    )
    assert any(line.startswith("time: ") for line in now)
    assert len(shown[:start]) > 5
