"""How the devices of a machine are shared out between trials that train side by side."""

import pytest

from official_trainer.distributed.cluster import GIVEN_GPUS, SKYPILOT_GPUS
from official_trainer.distributed.devices import Devices
from official_trainer.processes.starter import Slot
from official_trainer.sweeps.slots import Share, Slots


def devices(cores, gpus=0):
    return Devices(cores=tuple(range(8, 8 + cores)), gpus=tuple(f"GPU-{number}" for number in range(gpus)))


def shared(there, parallel, share=None, environ=()):
    """Returns the slots, in the order in which they are taken, and what is said of them."""
    found = Slots(there, share or Share.of(there, parallel), parallel, dict(environ))
    taken = []
    while (slot := found.free(taken)) is not None:
        taken.append(slot)
    return taken, list(found.lines())


def test_each_trial_gets_as_many_cores_and_gpus_as_any_other_and_they_are_its_own():
    """N21: what does not divide is left idle."""
    slots, lines = shared(devices(7, 5), 2)
    assert slots == [
        Slot(0, (8, 9, 10), {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"}),
        Slot(1, (11, 12, 13), {"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-3"}),
    ]
    assert lines == ["2 trials at a time, each with 3 of 7 cores and 2 of 5 GPUs"]
    for there in (devices(4, 2), devices(0)):  # of one at a time nothing is bound, set or said
        assert shared(there, 1) == ([Slot(0)], [])


def test_more_trials_than_devices_share_them():
    """N21: each has one, so results do not depend on how many trials there are; people are told."""
    slots, lines = shared(devices(2, 1), 3)
    assert [slot.cores for slot in slots] == [(8,), (9,), (8,)]
    assert [slot.environ for slot in slots] == [{}, {}, {}]  # the only one
    (line,) = lines
    assert line == (
        "3 trials at a time, each with 1 of 2 cores and 1 of 1 GPU; they share cores and GPUs, of which there are too "
        "few"
    )


@pytest.mark.parametrize(
    ("parallel", "cores", "gpus", "line"),
    [
        (1, [(8, 9)], ["GPU-0"], "each trial has 2 of 4 cores and 1 of 2 GPUs, as when the sweep began"),
        (2, [(8, 9), (10, 11)], ["GPU-0", "GPU-1"], "2 trials at a time, each with 2 of 4 cores and 1 of 2 GPUs"),
        (
            3,
            [(8, 9), (10, 11), (8, 9)],
            ["GPU-0", "GPU-1", "GPU-0"],
            "3 trials at a time, each with 2 of 4 cores and 1 of 2 GPUs, as when the sweep began; they share cores and "
            "GPUs, of which there are too few",
        ),
    ],
)
def test_a_continued_sweep_keeps_the_number_of_devices_of_a_trial(parallel, cores, gpus, line):
    """N21: whatever `--parallel` is by now, because last bits depend on that number."""
    slots, lines = shared(devices(4, 2), parallel, Share(cores=2, gpus=1))
    assert [slot.cores for slot in slots] == cores
    assert [slot.environ["CUDA_VISIBLE_DEVICES"] for slot in slots] == gpus
    assert lines == [line]


def test_on_a_smaller_machine_it_goes_on_with_what_there_is():
    """N21: and says that results may differ."""
    slots, lines = shared(devices(4), 1, Share(cores=8, gpus=1))
    assert slots == [Slot(0)]
    assert lines == [
        "each trial had 8 cores when the sweep began, and has 4 here: the last bits of results may differ",
        "each trial had 1 GPU when the sweep began, and has 0 here: the last bits of results may differ",
    ]
    slots, lines = shared(devices(4, 4), 2, Share(cores=2, gpus=0))  # it began without GPUs
    assert [slot.environ["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["GPU-0,GPU-1", "GPU-2,GPU-3"]
    assert lines[1:] == [
        "each trial had 0 GPUs when the sweep began, and has 2 here: the last bits of results may differ"
    ]


@pytest.mark.parametrize("name", [GIVEN_GPUS, SKYPILOT_GPUS])
@pytest.mark.parametrize(("given", "expected"), [("4", "2"), ("1", "1"), ("many", None)])
def test_a_process_is_told_that_it_was_given_fewer_gpus(name, given, expected):
    """N21: else it would not train, because it sees fewer than its engine has promised."""
    slots, _ = shared(devices(2, 4), 2, environ={name: given})
    assert [slot.environ.get(GIVEN_GPUS) for slot in slots] == [expected] * 2
    slots, _ = shared(devices(2, 4), 1, environ={name: given})
    assert slots == [Slot(0)]


def test_a_slot_that_is_given_back_is_taken_again():
    """N21: the first one that no trial has."""
    there = devices(4)
    slots = Slots(there, Share.of(there, 3), 3, {})
    one, two, three = (Slot(number, (8 + number,)) for number in range(3))
    assert slots.free([]) == one and slots.free([one]) == two and slots.free([three, two]) == one
    assert slots.free([one, two, three]) is None


@pytest.mark.parametrize("content", [{"cores": "2", "gpus": 0}, {"cores": True, "gpus": 0}, {"cores": 1, "gpus": -1}])
def test_only_a_number_of_devices_is_one(content):
    """N21: in `sweep.json`, which people may change."""
    with pytest.raises(TypeError, match="which is no number of devices"):
        Share(**content)
