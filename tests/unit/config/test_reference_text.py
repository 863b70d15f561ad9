"""N30: how `${…}` is written, and what is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.config.reference_text import WrongReferenceError, escaped, parse, refers, unescaped


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${a", "has a '${' without its '}'"),
        ("${a ${b}}", "has a '${' without its '}'"),
        ("${}", "has '' in a reference, which is no path of a field"),
        ("${a b}", "has 'a b' in a reference, which is no path of a field"),
        ("${a // 2}", "has 'a // 2' in a reference, which is no path of a field"),
        ("${a.__class__()}", "has 'a.__class__()' in a reference, which is no path of a field"),
        ("${" + "a+" * 300 + "}", "a+' in a reference, which is no path of a field"),
    ],
)
def test_what_is_no_reference(text, said):
    """N30: the message quotes the part, and says that nothing is computed."""
    with pytest.raises(WrongReferenceError) as refused:
        parse(text)
    assert said in str(refused.value)
    fix = "write $${" if "without" in said else "a reference is ${PATH}, and nothing is computed in it"
    assert fix in refused.value.fix


@pytest.mark.parametrize("path", ["a", "a.b[0].'c d'.\"e\"", "task.x.0", "a.b[-1]"])
def test_paths_are_those_of_overrides(path):
    """N30: items of lists, quoted keys, keys of digits; with spaces around or without."""
    assert parse(f"${{{path}}}") == parse(f"${{ {path} }}") == ["", path, ""]


def test_text_around_references():
    assert parse("x$${a}_${b}$$${c}/${d}") == ["x${a}_", "b", "$${c}/", "d", ""]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="${}a"))
def test_an_escaped_text_is_that_text(text):
    """N30: whatever it is, it then refers to nothing and gives itself back."""
    assert not refers(escaped(text))
    assert unescaped(escaped(text)) == text
