"""N7: a slip of one character in any field name is refused, and the right name is the first suggestion."""

import pytest

from official_trainer.config import ConfigError, resolve
from official_trainer.config import optimization as opt
from official_trainer.config.fields import children, is_section
from official_trainer.config.limits import MAX_PROBLEMS
from tests.support.cases import cases
from tests.support.config.sample import base


def _slips(key):
    """One slip at each character: dropped, doubled, replaced, swapped with the next, in turn."""
    for i, char in enumerate(key):
        before, after, other = key[:i], key[i + 1 :], "q" if char != "q" else "z"
        slips = (
            before + after,
            before + char + char + after,
            before + other + after,
            before + after[:1] + char + after[1:],
        )
        yield slips[(i + len(key)) % 4]


def _sections(value, path=""):
    yield path, [str(key) for key, _ in children(value)]
    for key, part in children(value):
        if is_section(part):
            yield from _sections(part, f"{path}.{key}".lstrip("."))


def _full():
    """The whole schema, optional sections included."""
    start = base()
    optimizer = opt.OptimizationConfig(ema=opt.EMAConfig())
    return start.replace(trainer=start.trainer.replace(optimizer_config=optimizer))


@pytest.mark.parametrize("stride", cases([5, 1], 5))
def test_every_slip_is_refused_and_mended(stride):
    """N7: one slip at each character of each field of the schema; ≥ 95 % right first suggestions."""
    slips = [
        (f"{path}.{slip}".lstrip("."), key)
        for path, keys in _sections(_full())
        for key in keys
        for slip in dict.fromkeys(_slips(key))
        if slip and slip not in keys and slip[0] != "_"
    ]
    assert len(slips) > 2000
    slips = slips[::stride]
    near = {}
    for first in range(0, len(slips), MAX_PROBLEMS):
        with pytest.raises(ConfigError) as refused:
            resolve(_full(), params_overrides=[f"{path}=1" for path, _ in slips[first : first + MAX_PROBLEMS]])
        near |= {problem.path: problem.near for problem in refused.value.problems}
    assert [path for path, _ in slips if path not in near] == []
    right = sum(near[path] == key for path, key in slips)
    assert right / len(slips) >= 0.95
