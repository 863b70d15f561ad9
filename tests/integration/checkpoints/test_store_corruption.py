"""Whatever is done to the files of a checkpoint: what is restored is whole and right, or nothing is."""

import itertools
import json
import logging
import os
import re
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.errors import ExitCode
from tests.support.cases import cases
from tests.support.chaos.tiny import Tiny, read_newest
from tests.support.checkpoint_damage import HARMS, PARTS
from tests.support.runs import contents

STEPS = (1, 2, 3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A directory with whole checkpoints of all steps; copied, never changed."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    for step in STEPS:
        Tiny(step).store(directory, run=manifest.RunFacts(experiment="tiny")).save(step, {"best": 0.5})
    return directory


@pytest.fixture
def saved(whole, model_dir):
    shutil.copytree(whole, model_dir)
    return Path(model_dir)


# Every file × every harm × the newest or all.


def said(part, harm):
    if harm == "missing":
        return f"ckpt-3{PARTS[part]} is missing"
    if part == "manifest":
        return "ckpt-3.manifest.json (cannot be read|.* checksum)"
    return "does not match its checksum" if "flipped" in harm else r"has \d+ bytes, not \d+"


@pytest.mark.parametrize(
    ("part", "harm"),
    cases([*itertools.product(PARTS, HARMS)], *(("data", harm) for harm in HARMS), *((p, "missing") for p in PARTS)),
)
def test_a_damaged_newest_checkpoint_costs_one_checkpoint(saved, caplog, part, harm):
    """N3: passed over where it is, the next older one restored bit for bit, and the step can be saved again."""
    HARMS[harm](saved / f"ckpt-3{PARTS[part]}")
    before = contents(saved)
    program = Tiny()
    store = program.store(saved)
    with caplog.at_level(logging.WARNING):
        assert store.restore().step == 2
    program.assert_is_at(2)
    assert (store.steps(), store.latest_step()) == ((1, 2), 2)
    assert re.search(f"ckpt-3 is damaged: .*{said(part, harm)}.*an older checkpoint is used", caplog.text)
    assert tf.train.latest_checkpoint(str(saved)) == f"{saved}/ckpt-2"
    assert {**contents(saved), "checkpoint": b""} == {**before, "checkpoint": b""}
    program.train_to(3)
    store.save(3)
    assert store.steps() == STEPS
    fresh = Tiny()
    assert fresh.store(saved).restore().step == 3
    fresh.assert_is_at(3)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("part", PARTS)
def test_damage_to_all_checkpoints_stops_the_run(saved, part, harm):
    """N3, N6: exit code 2 with what is wrong with each; nothing is moved, deleted or assigned."""
    for step in STEPS:
        HARMS[harm](saved / f"ckpt-{step}{PARTS[part]}")
    before = contents(saved)
    program = Tiny(9)
    with pytest.raises(CheckpointError, match=r"none that is whole|without manifests") as caught:
        program.store(saved).restore()
    assert caught.value.exit_code == ExitCode.CONFIG
    assert all(f"ckpt-{step}" in str(caught.value) for step in STEPS) and "another --model_dir" in str(caught.value)
    program.assert_is_at(9)
    assert contents(saved) == before


def test_different_damage_to_several_checkpoints(saved):
    """N3: the newest whole one is found behind any number of damaged ones."""
    HARMS["missing"](saved / "ckpt-3.manifest.json")
    HARMS["flipped_middle"](saved / "ckpt-2.data-00000-of-00001")
    program = Tiny()
    assert program.store(saved).restore().step == 1
    program.assert_is_at(1)
    store = program.store(saved)
    assert store.restore().step == 1
    assert (store.steps(), store.latest_step()) == ((1,), 1)


def test_a_manifest_without_its_files(saved):
    """N3: a commit mark alone is damage, also when it is all there is."""
    for part in ("index", "data"):
        (saved / f"ckpt-3{PARTS[part]}").unlink()
    assert Tiny().store(saved).restore().step == 2
    for step, part in [(step, part) for step in (1, 2) for part in ("index", "data")]:
        (saved / f"ckpt-{step}{PARTS[part]}").unlink()
    before = contents(saved)
    with pytest.raises(CheckpointError, match="none that is whole"):
        Tiny().store(saved).restore()
    assert contents(saved) == before


@pytest.mark.parametrize("harm", [None, "flipped_middle", "empty"])
def test_a_leftover_mark_of_a_save_neither_hides_damage_nor_makes_it(saved, harm):
    """N3: a process died between the commit and the removal of its mark."""
    (saved / "ckpt-3.saving").touch()
    if harm is not None:
        HARMS[harm](saved / "ckpt-3.manifest.json")
    program = Tiny()
    expected = 3 if harm is None else 2
    assert program.store(saved).restore().step == expected
    program.assert_is_at(expected)
    assert (saved / "ckpt-3.saving").exists() == (harm is not None)


@pytest.mark.parametrize("content", [None, b"", b"\x00\xff garbage", b'model_checkpoint_path: "ckpt-9"\n'])
def test_damage_to_the_pointer_changes_nothing(saved, content):
    """N3: it is written for other tools, again at every start."""
    pointer = saved / "checkpoint"
    good = pointer.read_bytes()
    pointer.unlink() if content is None else pointer.write_bytes(content)
    program = Tiny()
    assert program.store(saved).restore().step == 3
    program.assert_is_at(3)
    assert pointer.read_bytes() == good


# Any byte of a manifest.


@pytest.mark.parametrize("masks", [(0x01, 0x20), pytest.param((0x02, 0x10, 0x80), marks=pytest.mark.full)], ids=str)
def test_no_byte_of_a_manifest_changes_unnoticed(saved, masks):
    """N3: digits of sizes, letters of keys, the caller's own data: every byte, changed in several ways."""
    path = saved / "ckpt-3.manifest.json"
    good, expected = path.read_bytes(), manifest.read(str(saved), 3)
    assert json.loads(good)["sha256"]
    unnoticed = []
    for position in range(len(good)):
        for mask in masks:
            path.write_bytes(good[:position] + bytes([good[position] ^ mask]) + good[position + 1 :])
            try:
                found = manifest.read(str(saved), 3)
            except manifest.UnreadableManifestError:
                continue
            if found != expected:  # another blank between two values is the same manifest
                unnoticed.append((position, mask))
    assert not unnoticed


@pytest.mark.parametrize("stride", cases([29, 1], 29))
def test_any_byte_of_data_and_index(saved, stride):
    """N3: a sample of the bytes, and all of them."""
    program = Tiny()
    for part in ("data", "index"):
        path = saved / f"ckpt-3{PARTS[part]}"
        good = path.read_bytes()
        for position in range(0, len(good), stride):
            path.write_bytes(good[:position] + bytes([good[position] ^ 0x10]) + good[position + 1 :])
            assert read_newest(program.checkpoint, saved) == 2
            program.assert_is_at(2)
        path.write_bytes(good)
    assert read_newest(program.checkpoint, saved) == 3


def test_keys_that_are_no_text_do_not_break_the_checksum(model_dir):
    """JSON turns them into text; the manifest must still be true to itself."""
    Tiny(1).store(model_dir).save(1, {"counts": {2: 0.1, 10: (1, None)}, "value": float("nan"), "name": "ä"})
    assert Tiny().store(model_dir).restore().step == 1


@pytest.mark.parametrize(
    "text", ["[]", '"abc"', "null", "5", '{"format_version": 1}', '{"format_version": "1"}', "\x00\x00", "[" * 50]
)
def test_text_that_is_no_manifest(saved, text):
    """N3: whatever JSON, or not, is there instead."""
    (saved / "ckpt-3.manifest.json").write_text(text)
    assert Tiny().store(saved).restore().step == 2


@pytest.mark.parametrize(
    "change",
    [
        {"files": []},
        {"files": {"ckpt-3.index": 5}},
        {"files": {}},
        {"step": 2},
        {"run": {"other": 1}},
        {"run": 5},
        {"extra": []},
    ],
)
def test_values_that_no_manifest_has(saved, change):
    path = saved / "ckpt-3.manifest.json"
    values = json.loads(path.read_text())
    del values["sha256"]
    path.write_text(manifest.signed(values | change))
    assert Tiny().store(saved).restore().step == 2


def test_the_manifest_of_another_step(saved):
    """N3: a copy in the wrong place is not believed."""
    shutil.copy(saved / "ckpt-2.manifest.json", saved / "ckpt-3.manifest.json")
    program = Tiny()
    assert program.store(saved).restore().step == 2
    program.assert_is_at(2)


def test_what_may_not_be_read_is_not_taken_for_damage(saved, monkeypatch):
    """N3, N6: nothing is known about the checkpoint, so nothing is done to it."""
    before, opened = contents(saved), files.open_file
    for part in ("manifest", "index"):

        def refuse(path, mode, suffix=PARTS[part]):
            if path.endswith(f"ckpt-3{suffix}"):
                raise PermissionError(13, "Permission denied", path)
            return opened(path, mode)

        with monkeypatch.context() as patch:
            patch.setattr(files, "open_file", refuse)
            with pytest.raises(
                CheckpointError, match=r"ckpt-3\S+ cannot be read by this user, so .*permission to read it, or"
            ):
                Tiny().store(saved).restore()
        assert contents(saved) == before


@pytest.mark.parametrize(("part", "harm"), [("data", "flipped_middle"), ("manifest", "missing"), ("index", "empty")])
def test_a_damaged_checkpoint_goes_with_those_of_its_age(saved, part, harm):
    """N3: one whose step is not saved again is deleted once it is older than all that are kept."""
    HARMS[harm](saved / f"ckpt-3{PARTS[part]}")
    program = Tiny()
    store = program.store(saved, max_to_keep=2)
    assert store.restore().step == 2
    for step in (4, 5):
        program.train_to(step)
        store.save(step)
    assert store.steps() == (4, 5)
    assert not [name for name in os.listdir(saved) if name.startswith("ckpt-3")]
