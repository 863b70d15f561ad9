"""The Tab key in real shells, each set up with its line of the guide."""

import os
import re
import select
import shutil
import sys
import time

import pytest

from tests import ROOT
from tests.support.terminal import on_a_terminal
from tests.support.workspace import copy_workspace

GUIDE = (ROOT / "docs" / "guides" / "config.md").read_text(encoding="utf-8")
READY = "ready:"
SHELLS = {
    "bash": ["bash", "--noprofile", "--norc", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i", "-C", f"function fish_prompt; echo -n '{READY} '; end"],
}
TRAINER = """\
#!/bin/sh
if [ -n "$_ARGCOMPLETE" ]; then exec {python} -m official_trainer "$@"; fi
printf '<%s>' "$@"
"""
TYPED = (
    ("tra", "train"),
    ("digits_c", "digits_cnn"),
    ("--mode=train_and_p", "--mode=train_and_post_eval"),
    ("--config_file=configs/digits_c", "--config_file=configs/digits_cnn.yaml"),
    ("trainer.optimizer_config.optimizer=sg", "trainer.optimizer_config.optimizer=sgd"),
    ("trainer.optimizer_config.optimizer.sgd.mom", "trainer.optimizer_config.optimizer.sgd.momentum="),
)
"""Words, and what the Tab key makes of each."""


def line_of_the_guide(shell):
    [line] = re.findall(rf"^- {shell}, in `.+?`: `(.+)`$", GUIDE, flags=re.MULTILINE)
    return line


def read_until(terminal, pattern):
    """Reads what a terminal shows until it has the pattern; the time is only a limit for a shell that hangs."""
    shown, end = "", time.monotonic() + 240
    while not re.search(pattern, shown, flags=re.DOTALL):
        assert time.monotonic() < end, shown
        select.select([terminal], [], [], 1)
        try:
            shown += os.read(terminal, 1 << 16).decode(errors="replace")
        except BlockingIOError:
            continue


@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_completes_a_command(shell, tmp_path):
    """G16: verb, experiment, flag, file, choice and setting; a space follows what is complete."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    copy_workspace(tmp_path, "experiments", "configs")
    program = tmp_path / "bin" / "official-trainer"
    program.parent.mkdir()
    program.write_text(TRAINER.format(python=sys.executable))
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), os.path.dirname(sys.executable), os.environ["PATH"]])
    environ = {"PATH": path, "PS1": f"{READY} ", "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    with on_a_terminal(SHELLS[shell], tmp_path, **environ) as (_, terminal):
        read_until(terminal, READY)
        os.write(terminal, f"{line_of_the_guide(shell)}; printf '%s%s\\n' set up\n".encode())
        read_until(terminal, f"setup.*{READY}")
        keys = "".join(f"{word}\t" for word, _ in TYPED)
        os.write(terminal, f"official-trainer {keys}0.5\n".encode())
        words = "".join(f"<{word}>" for _, word in TYPED)
        read_until(terminal, re.escape(f"{words[:-1]}0.5>"))
