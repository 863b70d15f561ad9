"""What is said of mistakes: files of pairs, what is given and the messages; `--update-golden` writes them."""

import shlex
from pathlib import Path

import pytest
import yaml

from official_trainer import cli
from official_trainer.config import ConfigError, resolve
from official_trainer.tasks import registry

CONFIG = Path(__file__).parent / "config" / "messages.yaml"
COMMANDS = Path(__file__).parent / "cli" / "messages.yaml"


def check(say, request, file=CONFIG):
    """Asserts that what is said of everything in some groups is what the file has; `--update-golden` writes it there.

    Args:
      say: for each group a function that returns what is said of what is given.
      request: pytest's.
      file: which.
    """
    text = file.read_text(encoding="utf-8")
    expected = yaml.safe_load(text)
    assert say.keys() <= expected.keys()
    said = {group: [[given, say[group](given)] for given, _ in expected[group]] for group in say}
    if request.config.getoption("--update-golden"):
        pairs = yaml.safe_dump(
            {**expected, **said}, width=10**6, allow_unicode=True, sort_keys=False, default_flow_style=None
        )
        file.write_text("".join([*text.splitlines(keepends=True)[:1], pairs]), encoding="utf-8")
    else:
        pairs = [pair for group in say for pair in zip(expected[group], said[group], strict=True)]
        other = [
            f"{given!r}: {message!r}, not {before!r}" for (given, before), (_, message) in pairs if message != before
        ]
        assert not other, "\n".join(other)


def said_of(base, **layers):
    """Returns what is said of a wrong configuration: a message, or several."""
    with pytest.raises(ConfigError) as caught:
        resolve(base, **layers)
    messages = [problem.message for problem in caught.value.problems]
    return messages if len(messages) > 1 else messages[0]


def check_profiles(group, request, profile):
    """Asserts what is said of settings of a launch profile, those of a group of `config/messages.yaml`."""
    check({group: lambda text: said_of(profile, params_overrides=[text])}, request)


def check_refused(group, request, capfd, *before, hides=None):
    """Asserts the messages with which commands are refused, those of a group of `cli/messages.yaml`.

    Args:
      group: its name.
      request: pytest's.
      capfd: pytest's, or `capsys`.
      before: the words that every command begins with.
      hides: a text that differs from run to run, in place of which stands `…`.
    """

    def say(command):
        capfd.readouterr()
        assert cli.main([*before, *shlex.split(command)]) == 2, command
        return capfd.readouterr().err.replace(str(hides), "…").removeprefix("error: ").rstrip()

    factories = registry._factories
    modules = {name: getattr(factory, "__module__", "") for name, factory in factories.items()}
    of_tests = {name: factories[name] for name, module in modules.items() if not module.startswith("experiments.")}
    for name in of_tests:
        del factories[name]  # else they would be among what is allowed
    try:
        check({group: say}, request, COMMANDS)
    finally:
        factories.update(of_tests)
