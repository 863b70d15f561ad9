"""What is said of wrong configurations: `messages.yaml` has pairs of what is given and the messages, by groups."""

from pathlib import Path

import yaml

FILE = Path(__file__).with_name("messages.yaml")


def check(say, request):
    """Asserts that what is said of everything in some groups is what the file has; `--update-golden` writes it there.

    Args:
      say: for each group a function that returns what is said of what is given.
      request: pytest's.
    """
    text = FILE.read_text(encoding="utf-8")
    expected = yaml.safe_load(text)
    assert say.keys() <= expected.keys()
    said = {group: [[given, say[group](given)] for given, _ in expected[group]] for group in say}
    if request.config.getoption("--update-golden"):
        pairs = yaml.safe_dump(
            {**expected, **said}, width=10**6, allow_unicode=True, sort_keys=False, default_flow_style=None
        )
        FILE.write_text("".join([*text.splitlines(keepends=True)[:1], pairs]), encoding="utf-8")
    else:
        assert said == {group: expected[group] for group in say}
