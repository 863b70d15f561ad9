"""Templates of checkpoint names: what they give, and that a bad one is known before training."""

import pytest

from official_trainer.checkpoints.name_template import NameTemplate
from tests.support import golden


def test_what_templates_give():
    """C3: counters and any number of the evaluation, nested ones by a bar."""
    for template, name in (
        ("{step:08d}", "00000300"),
        ("{epoch:02d}-{batch}-{step:08d}-{validation_loss:.2f}", "03-7-00000300-0.25"),
        ("best", "best"),
        ("{{{step}}}-{dev|accuracy:.1%}", "{300}-12.5%"),
        ("{step}-{validation_loss}", "300-0.25"),
        ("loss{validation_loss:+09.3f}", "loss+0000.250"),
    ):
        assert NameTemplate(template).format(300, (3, 7), {"validation_loss": 0.25, "dev/accuracy": 0.125}) == name


def test_what_a_template_needs_is_known():
    """C3: metrics by name, each once."""
    template = NameTemplate("{step}-{dev|accuracy:.2f}-{loss}-{loss:.1f}")
    assert template.metrics == ("dev|accuracy", "loss")
    assert not template.needs_epochs
    assert NameTemplate("{batch}").needs_epochs


def test_names_of_the_largest_numbers_are_at_most_as_long_as_a_folders():
    """C3, N34: whatever the numbers of a training are, the name can be written."""
    for template in ("a" * 236 + "{step}", "-".join(["{loss:.4g}"] * 20), "{step:0127d}", "{step:1>10}"):
        name = NameTemplate(template).format(2**63 - 1, None, {"loss": -3.4028234663852886e38})
        assert len(name) <= 255


def test_bad_templates(request):
    """C3: messages."""

    def say(template):
        with pytest.raises(ValueError) as caught:
            NameTemplate(template)
        return str(caught.value)

    golden.check({"names of checkpoints": say}, request)
    largest = "and a folder's has at most 255; shorten the text"
    for template, message in (  # with words of Python's, or too long for a file
        ("{step:08d", "'{step:08d' cannot be read: "),
        ("{loss:{step}}", "cannot hold {loss:{step}}: "),
        ("{loss:" + "9" * 5000 + "f}", "cannot hold {loss:99999"),
        ("{step}" * 5000, f"produces names of up to 95000 bytes, {largest}"),
        ("é" * 128, f"produces names of up to 256 bytes, {largest}, or write"),
    ):
        assert say(template).startswith(message)
