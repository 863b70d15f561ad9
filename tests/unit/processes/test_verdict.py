"""The pure pieces of a job: how its end is judged, when it starts again, how output is cut into lines."""

import io

import pytest

from official_trainer import files
from official_trainer.processes.output import Printer
from official_trainer.processes.verdict import End, Restarts, exit_code, judge


def ends(*pairs, told=()):
    return [End(name=name, role=name.split()[0], code=code, was_told=name in told) for name, code in pairs]


CAUSES = [
    (ends(("worker 0", 0), ("worker 1", 0)), 0, None),
    (ends(("worker 0", 75), ("worker 1", 3)), 3, "worker 1"),
    (ends(("worker 0", 2), ("worker 1", 3)), 2, "worker 0"),
    (ends(("worker 0", 75), ("worker 1", 75)), 75, "worker 0"),
    (ends(("worker 0", 75), ("worker 1", -6), ("worker 2", -9)), 75, "worker 2"),
    (ends(("worker 0", -6), ("worker 1", 1)), 1, "worker 1"),
    (ends(("worker 0", 75), ("worker 1", -6)), 75, "worker 1"),
    (ends(("worker 0", 143), ("worker 1", 75)), 143, "worker 0"),
    (ends(("worker 0", 143), ("worker 1", 4)), 4, "worker 1"),
    (ends(("worker 0", 137), ("worker 1", 75)), 75, "worker 0"),
    (ends(("worker 0", 5), ("worker 1", 1), told=("worker 1",)), 5, "worker 0"),
    (ends(("worker 0", 75), ("worker 1", -9), told=("worker 1",)), 75, "worker 1"),
    (ends(("worker 0", 75), ("worker 1", -6), told=("worker 1",)), 75, "worker 0"),
    (ends(("ps 0", -9), ("chief", 75), ("worker 0", -15), told=("worker 0",)), 75, "ps 0"),
    (ends(("worker 0", -9), ("chief", 0), ("ps 0", -15), told=("ps 0",)), 0, None),
    (ends(("worker 0", 0), ("evaluator", 4)), 4, "evaluator"),
    (ends(("evaluator", 4), ("worker 0", 3)), 3, "worker 0"),
]


def test_whose_failure_it_was():
    for found, code, cause in CAUSES:
        outcome = judge(found, was_asked=False)
        assert (outcome.code, outcome.cause and outcome.cause.name) == (code, cause), found


def test_a_process_that_the_launcher_kills_is_not_the_cause():
    """It did not end in time; that another one is lost is why it was told to end."""
    late = End(name="worker 1", role="worker", code=-9, was_told=True, was_killed=True)
    outcome = judge([*ends(("worker 0", 75)), late], was_asked=False)
    assert outcome.cause.name == "worker 0"


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (ends(("worker 0", 143), ("worker 1", 143), told=("worker 0", "worker 1")), 143),
        (ends(("worker 0", -15), ("worker 1", 0), told=("worker 0", "worker 1")), 143),
        (ends(("worker 0", 0), ("worker 1", 0), told=("worker 0", "worker 1")), 0),
        (ends(("worker 0", 143), ("worker 1", 75), told=("worker 0", "worker 1")), 143),
        (ends(("worker 0", 143), ("worker 1", -9), told=("worker 0", "worker 1")), 75),
        (ends(("worker 0", 143), ("worker 1", 4), told=("worker 0", "worker 1")), 4),
        (ends(("chief", 143), ("worker 0", -15), ("ps 0", -9), told=("chief", "worker 0", "ps 0")), 143),
    ],
)
def test_the_end_of_a_job_that_was_asked_to_stop(found, code):
    assert judge(found, was_asked=True).code == code


def test_exit_codes_say_whether_to_start_again():
    for code, expected in ((0, 0), (3, 3), (7, 7), (75, 75), (143, 143), (-9, 75), (137, 75)):
        assert exit_code(code) == expected


def test_waits_double_until_there_is_a_new_checkpoint():
    restarts = Restarts()
    assert [restarts.next(None), restarts.next(None), restarts.next(10), restarts.next(10)] == [1, 2, 1, 2]
    assert [restarts.next(step) for step in range(20, 30)] == [1] * 10


def test_after_a_new_checkpoint_there_may_be_no_wait():
    """N26: the wait is for what fails again at the same place."""
    restarts = Restarts(is_prompt=True)
    assert [restarts.next(step) for step in (None, 10, 10, 10, 20, 20)] == [1, 0, 2, 4, 0, 2]
    assert Restarts(is_prompt=True).next(10) == 0


def test_waits_are_at_most_a_minute():
    restarts = Restarts(first_seconds=30)
    assert [restarts.next(7), restarts.next(7), restarts.next(7)] == [30, 60, 60]


def test_five_restarts_without_a_checkpoint_are_the_last():
    restarts = Restarts()
    assert [restarts.next(None) for _ in range(5)] == [1, 2, 4, 8, 16]
    assert "after 5 restarts there is no checkpoint" in restarts.next(None)
    assert restarts.is_crash_loop


def test_a_limit_of_restarts():
    restarts = Restarts(limit=2)
    assert [restarts.next(1), restarts.next(2)] == [1, 1]
    assert restarts.next(3) == "--max_restarts=2 is used up"
    assert not restarts.is_crash_loop


def printed(*pieces, **options):
    stream = io.StringIO()
    printer = Printer(stream, **options)
    printer.expect(["worker 0", "evaluator"])
    lines = printer.lines_of("worker 0")
    for piece in pieces:
        lines.feed(piece)
    lines.end()
    return stream.getvalue().splitlines(), lines


def test_labels_are_as_wide_as_the_longest():
    found, lines = printed(b"a\nb", b"c\n\nd")
    assert found == ["[worker 0]  a", "[worker 0]  bc", "[worker 0]", "[worker 0]  d"]
    assert list(lines.last) == ["a", "bc", "d"]


def test_of_a_bar_its_last_state_is_shown():
    assert printed(b"  1 %\r 50 %\r100 %\r\nnext\r\n")[0] == ["[worker 0]  100 %", "[worker 0]  next"]


def test_a_line_without_an_end_is_shown_in_parts():
    found, _ = printed(b"x" * 70_000, b"y")
    assert [len(line) - len("[worker 0]  ") for line in found] == [70_000, 1]


def test_bytes_that_are_no_text_and_characters_in_two_pieces():
    found, _ = printed("ü".encode()[:1], "ü".encode()[1:] + b"\xff\n")
    assert found == ["[worker 0]  ü\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("columns", [40, 80])
def test_lines_end_between_words_on_a_terminal_and_each_has_its_label(columns):
    line = b"validation @ 20: accuracy 0.6139  validation_loss 2.165  best_accuracy 0.6139  another_metric 5 %\n"
    found, lines = printed(line, columns=lambda: columns)
    assert all(len(each) <= columns and each.startswith("[worker 0]  ") for each in found)
    assert len(found) > 1
    assert " ".join(each.removeprefix("[worker 0]") for each in found).split() == line.decode().split()
    assert list(lines.last) == [line.decode().rstrip()]
    assert len(printed(line)[0]) == 1


def test_a_file_in_the_place_of_the_folder_of_logs(tmp_path):
    """N20: is named."""
    (tmp_path / "logs").write_text("mine")
    with pytest.raises(files.PathKindError, match=r"logs is a file, not a directory\. Move it away"):
        Printer(io.StringIO(), log_dir=str(tmp_path / "logs")).lines_of("worker 0")


def test_a_quiet_launcher_shows_its_processes_only():
    stream = io.StringIO()
    printer = Printer(stream, quiet=True)
    printer.say("nothing")
    assert not stream.getvalue()
