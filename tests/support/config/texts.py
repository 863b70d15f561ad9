"""Texts that are hard to write as YAML."""

from hypothesis import strategies as st

from official_trainer.config import FrozenDict

INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)


_NUMBERS = ["1e5", "2020-01-01", "010", "1_0", ".5"]
_WORDS = ["off", "null", "~", "", " a", "a ", "#", "- a", "a: b", "'", '"', "=", "<<"]
TEXTS = st.text(max_size=10) | st.sampled_from([*_NUMBERS, *_WORDS])


FREE = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS,
    lambda inner: st.tuples(inner) | st.dictionaries(TEXTS, inner, max_size=2).map(FrozenDict),
    max_leaves=4,
)
