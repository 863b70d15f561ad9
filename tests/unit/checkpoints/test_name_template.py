"""Templates of checkpoint names: what they give, and that a bad one is known before training."""

import pytest

from official_trainer.checkpoints.name_template import NameTemplate


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{step:08d}", "00000300"),
        ("{epoch:02d}-{batch}-{step:08d}-{validation_loss:.2f}", "03-7-00000300-0.25"),
        ("best", "best"),
        ("{{{step}}}-{dev|accuracy:.1%}", "{300}-12.5%"),
        ("{step}-{validation_loss}", "300-0.25"),
        ("loss{validation_loss:+09.3f}", "loss+0000.250"),
    ],
)
def test_what_templates_give(template, name):
    """C3: counters and any number of the evaluation, nested ones by a bar; and what may have been given is known."""
    found = NameTemplate(template)
    assert found.format(300, (3, 7), {"validation_loss": 0.25, "dev/accuracy": 0.125}) == name
    assert found.matches(name)
    assert not found.matches("-")


def test_what_a_template_needs_is_known():
    """C3: metrics by name, each once."""
    found = NameTemplate("{step}-{dev|accuracy:.2f}-{loss}-{loss:.1f}")
    assert found.metrics == ("dev|accuracy", "loss")
    assert not found.needs_place
    assert NameTemplate("{batch}").needs_place


HINT = r"placeholders are {epoch}, {batch}, {step} and metrics of the evaluation, such as {validation_loss:.2f}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{step:08d", "'{step:08d' cannot be read: "),
        ("a}", f"'a}}' cannot be read: Single '}}' encountered in format string; {HINT}"),
        ("{}", f"cannot hold {{}}; {HINT}"),
        ("{step!r:5}", f"cannot hold {{step!r:5}}; {HINT}"),
        (
            "{step:.2q}",
            "cannot hold {step:.2q}: Unknown format code 'q' for object of type 'int'; it stands for a whole",
        ),
        (
            "{loss:d}",
            "cannot hold {loss:d}: Unknown format code 'd' for object of type 'float'; it stands for a number",
        ),
        ("{loss:{step}}", "cannot hold {loss:{step}}: "),
        ("a/{step}", "produces names such as 'a/1', which no folder can have"),
        ("{step:/>8}", "produces names such as '///////1', which no folder"),
        ("", "produces names such as '', which no folder"),
        ("..", "produces names such as '..', which no folder"),
    ],
)
def test_bad_templates(template, message):
    """C3: messages."""
    with pytest.raises(ValueError) as caught:
        NameTemplate(template)
    assert str(caught.value).startswith(message)
