"""N30: the language of `${…}`: what it computes, exactly, and what it refuses."""

import fractions

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.config.expressions import ExpressionError, escaped, parse, refers, unescaped


def value(text, **values):
    (piece,) = parse(text)
    return piece.value([values[path] for path in piece.paths])


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${a}", 300),
        ("${ a }", 300),
        ("${a * 0.1}", 30),
        ("${a // 7}", 42),
        ("${-a // 7}", -43),
        ("${a / 7}", 300 / 7),
        ("${(a + 5) * 2 - 1}", 609),
        ("${a-1}", 299),
        ("${1_000 + .5}", 1000.5),
        ("${1e3 - 2.}", 998),
        ("${a - -a}", 600),
        ("${2 * a + a / 3}", 700),
        ("${(a * 0.03 + 0.5) // 1}", 9),
    ],
)
def test_arithmetic(text, result):
    """N30: numbers, fields, + - * / // and brackets; a whole result is an integer, 300 * 0.1 too."""
    found = value(text, a=300)
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${a", "has a '${' without its '}'"),
        ("${a ${b}}", "has a '${' without its '}'"),
        ("${}", "has '' in a reference, which cannot be read"),
        ("${a b}", "has 'a b' in a reference, which cannot be read"),
        ("${a ** 2}", "has 'a ** 2' in a reference, which cannot be read"),
        ("${a % 2}", "has '% 2' in a reference, which has no meaning there"),
        ("${a(1)}", "has 'a(1)' in a reference, which cannot be read"),
        ("${a.__class__()}", "cannot be read"),
        ("${a, 1}", "has ', 1' in a reference, which has no meaning there"),
        ("${010}", "has '010' in a reference, which cannot be read"),
        ("${10k}", "has '10k' in a reference, which has no meaning there"),
        ("${" + "1+" * 300 + "1}", "has a reference of 601 characters; at most 500 are allowed"),
        ("${" + "(" * 240 + "1" + ")" * 240 + "}", "cannot be read"),
    ],
)
def test_what_is_no_expression(text, said):
    """N30: the message quotes the part."""
    with pytest.raises(ExpressionError) as refused:
        parse(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "a", "said"),
    [
        ("${1 / a}", 0, "divides by zero"),
        ("${1 // a}", 0, "divides by zero"),
        ("${a * 2}", "x", "computes with a, which is x"),
        ("${a * 2}", None, "computes with a, which is null"),
        ("${a * 2}", True, "computes with a, which is True"),
        ("${a * 2}", float("inf"), "computes with a, which is inf"),
        ("${a + 1e999}", 1, "computes with a number, which is inf"),
        ("${a * 1e300 * 1e300 + 0.5 / 3}", 1, "is too large for a number"),
        ("${a * 1e300 * 1e300}", 1, "is too large for a number"),
    ],
)
def test_what_cannot_be_computed(text, a, said):
    """N30: only finite numbers are computed with."""
    with pytest.raises(ExpressionError) as refused:
        value(text, a=a)
    assert said in str(refused.value)


def test_paths_are_those_of_overrides():
    """N30: items of lists, quoted keys, keys of digits."""
    (piece,) = parse("${a.b[0].'c d'.\"e\" * task.x.0 - a.b[-1]}")
    assert piece.paths == ("a.b[0].'c d'.\"e\"", "task.x.0", "a.b[-1]")


def test_text_around_references():
    pieces = parse("x$${a}_${b}$$${c}/${d}")
    assert [piece if isinstance(piece, str) else piece.paths for piece in pieces] == [
        "x${a}_",
        ("b",),
        "$${c}/",
        ("d",),
    ]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="${}a"))
def test_an_escaped_text_is_that_text(text):
    """N30: whatever it is, it then refers to nothing and gives itself back."""
    assert not refers(escaped(text))
    assert unescaped(escaped(text)) == text


_NUMBERS = st.one_of(st.integers(0, 10**6), st.decimals(0, 1000, places=3).map(str)).map(str)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["+", "-", "*"]), _NUMBERS), max_size=6), _NUMBERS)
def test_sums_and_products_are_exact(rest, first):
    """N30: as with fractions, of which the result is the nearest number."""
    text = " ".join([first, *(word for pair in rest for word in pair)])
    names = {f"n{i}": number for i, number in enumerate([first, *(number for _, number in rest)])}
    source = " ".join(["n0", *(f"{sign} n{i}" for i, (sign, _) in enumerate(rest, 1))])
    exact = eval(source, {name: fractions.Fraction(number) for name, number in names.items()})
    assert value(f"${{{text}}}") == (int(exact) if exact.denominator == 1 else float(exact))
