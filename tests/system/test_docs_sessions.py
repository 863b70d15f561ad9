"""What carries out the pages of the documentation: it does what a reader would, and sees what is wrong on a page."""

import re

from tests.support.docs.outputs import masked, shows
from tests.support.docs.pages import blocks, commands
from tests.support.docs.session import Session

RIGHT = """
```python
# greet.py
import pathlib, sys
print("hello", *sys.argv[1:])
pathlib.Path("/tmp/greeted").write_text("yes")
```

1. In a list:

   ```sh
   mkdir -p ~/notes && cd ~/notes          # a folder of your own
   echo "a, b" | tr a c > kept.txt
   cd - && python greet.py \\
     --loudly
   PLACE=here python greet.py "two words"
   pip install it
   ```

```{code-block} console
:caption: Of a directive

$ python greet.py you
hello you
$ official-trainer show digits_mlp --explain=trainer.train_steps
…
  value  …
…
```

````{note}
```python
import pathlib
assert pathlib.Path("/tmp/greeted").read_text() == "yes"
```
````

```python
assert pathlib.Path.home().joinpath("notes", "kept.txt").read_text() == "c, b\\n"
```

```py
def fragment(self): ...
```

```
a diagram ──► and no command
official-trainer list
```

```console
$ python train.py --experiment=digits_mlp --model_dir=runs/whole trainer.train_steps=100
…
step 100/100  loss …
…
$ python train.py --experiment=digits_mlp --model_dir=runs/stopped trainer.train_steps=9000
…
step 100/9000  loss …
^C
$ ls runs
stopped
whole
```
"""

WRONG = """
```python
# configs/digits_cnn.yaml
```

```console
$ official-trainer show digits_mlp --explain=trainer.train_steps
trainer.train_steps: something else
$ official-trainer list --wrong
error: another message
$ official-trainer list
error: refused
```

```sh
official-trainer show digits_mlpp
cd nowhere
cat missing | wc -l
```

```python
def divide():
    return 1 / 0


divide()
```

```py
def
```
"""


def problems(text, folder):
    page = folder / "page.md"
    page.write_text(text)
    session = Session(page, folder, not_here=lambda command: command.startswith("pip "), shorten=True)
    found = [problem for block in blocks(page) for problem in session.carry_out(block)]
    session.close()
    return found


def test_what_is_right(tmp_path):
    """Files, lines of all kinds, the places of a page, one program for all Python blocks, Ctrl-C."""
    assert problems(RIGHT, tmp_path) == []


def test_what_is_wrong(tmp_path):
    """Each mistake is reported with its line on the page and with what was printed."""
    found = problems(WRONG, tmp_path)
    places = [int(re.match(r".*page\.md:(\d+): ", problem)[1]) for problem in found]
    assert places == [2, 7, 9, 11, 16, 17, 18, 21, 29]
    expected = [
        "configs/digits_cnn.yaml is a file of the workspace already",
        "global step at which training ends",
        "--wrong",
        "exit code 0, not 2",
        "digits_mlp",
        "there is no folder /shared/workspace/nowhere",
        "No such file",
        'page.md", line 23, in divide',
        "is no Python",
    ]
    for text, problem in zip(expected, found, strict=True):
        assert text in problem


SHOWN = (
    (["a", "…", "d"], ["a", "b", "c", "d"], True),
    (["a …"], ["a b c"], True),
    (["a", "d"], ["a", "b", "d"], False),
    (["a.c"], ["abc"], False),
    (masked(["step 20/100  loss 1.2e-05"]), masked(["step 5/100  loss   3"]), True),
    (masked(["step 20/100"]), masked(["Step 20/100"]), False),
)


def test_what_is_shown():
    for shown, said, is_shown in SHOWN:
        assert shows(shown, said) is is_shown


def test_commands_of_a_page(tmp_path):
    """Each has its line on the page; one that goes on in the next line is one."""
    page = tmp_path / "page.md"
    page.write_text(RIGHT)
    found = [(command.line, command.place.rpartition(":")[2]) for block in blocks(page) for command in commands(block)]
    assert ("official-trainer list", "48") in found
    assert ("python greet.py you", "23") in found
    assert ('PLACE=here python greet.py "two words"', "16") in found
