"""What carries out a page of the documentation sees what is wrong on it; `test_docs.py` has those that are right."""

import re

from tests.support.docs.pages import blocks
from tests.support.docs.session import Session

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


def test_what_is_wrong(tmp_path):
    """Each mistake is reported with its line on the page and with what was printed."""
    page = tmp_path / "page.md"
    page.write_text(WRONG)
    session = Session(page, tmp_path, not_here=lambda command: False, shorten=True)
    problems = [problem for block in blocks(page) for problem in session.carry_out(block)]
    session.close()
    expected = {
        2: "configs/digits_cnn.yaml is a file of the workspace already",
        7: "global step at which training ends",
        9: "--wrong",
        11: "exit code 0, not 2",
        16: "digits_mlp",
        17: "there is no folder /shared/workspace/nowhere",
        18: "No such file",
        21: 'page.md", line 23, in divide',
        29: "is no Python",
    }
    assert [int(re.match(r".*page\.md:(\d+): ", problem)[1]) for problem in problems] == [*expected]
    for text, problem in zip(expected.values(), problems, strict=True):
        assert text in problem
