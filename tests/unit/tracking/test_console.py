import contextlib
import io
import math
import re
import sys

import pytest

from official_trainer.tracking.console import Console, format_number, format_seconds, working
from tests.support.terminal import Terminal


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def plain(clock):
    """A console without a terminal, and the lines it has written."""
    stream = io.StringIO()
    return Console(stream, end_step=1000, clock=clock), lambda: stream.getvalue().splitlines()


def test_plain_lines_tell_step_metrics_speed_and_time_left(plain, clock):
    """A line for each few seconds of steps, each summary and each evaluation; nothing that passes, and no hints."""
    console, lines = plain
    for step in range(100, 149):
        clock.now = (step - 100) / 10
        console.progress(step, loss=2.5, examples_per_second=3.0)
    console.doing("evaluating", 148)
    console.hint("official-trainer eval")
    clock.now = 12.0
    console.progress(500, loss=0.2, examples_per_second=21034.4)
    console.log("train", 500, {"accuracy": 0.97, "training_loss": 0.12341, "batch_loss": 1.0, "learning_rate": 0.1})
    console.log("validation", 500, {"accuracy": 0.97222, "dev/loss": 1e-5})
    console.message("saved checkpoint 500")
    console.flush()
    console.close()
    assert lines() == [
        "step 100/1000  loss 2.5",
        "step 500/1000  loss 0.2  21034 examples/s  eta 0:15",
        "step 500/1000  loss 0.1234  accuracy 0.97  21034 examples/s  eta 0:15",
        "validation @ 500: accuracy 0.9722  dev/loss 1e-05",
        "saved checkpoint 500",
    ]


def test_an_unknown_end_and_a_rewind_give_no_time_left(clock):
    stream = io.StringIO()
    console = Console(stream, end_step=None, clock=clock)
    console.progress(100, loss=1.0, examples_per_second=5.0)
    clock.now = 10.0
    console.progress(200, loss=math.nan, examples_per_second=5.0)
    console.end_step = 400
    console.log("train", 300, {"loss": 1.0})
    console.rewind(100)
    console.log("train", 150, {"loss": 1.0})
    clock.now = 20.0
    console.progress(150, loss=1.0, examples_per_second=5.0)
    clock.now = 25.0
    console.progress(200, loss=1.0, examples_per_second=5.0)
    assert stream.getvalue().splitlines() == [
        "step 100  loss 1",
        "step 200  loss nan  5 examples/s",
        "step 300/400  loss 1  5 examples/s  eta 0:05",
        "step 150/400  loss 1  5 examples/s",
        "step 150/400  loss 1  5 examples/s",
        "step 200/400  loss 1  5 examples/s  eta 0:20",
    ]


@pytest.fixture
def bar(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    console = Console(stream, end_step=1000, monitored="accuracy", clock=clock)
    yield console, stream
    console.close()


def test_a_terminal_has_a_bar_and_lines_above_it(bar, clock):
    """K7: drawn a few times a second, and always at the end."""
    console, stream = bar
    console.message("digits_cnn")
    console.progress(250, loss=0.5, examples_per_second=21.0)
    console.log("validation", 250, {"[b]accuracy": 0.9722})
    assert "step 250/1000 ━" in shown(stream)
    assert "  [b]accuracy  0.9722\n" in shown(stream)
    clock.now = 10.0
    console.progress(500, loss=0.5, examples_per_second=21034.0)
    console.log("train", 500, {"accuracy": 0.5, "training_loss": 0.25})
    last = shown(stream)[shown(stream).rindex("step 500/1000 ━") :]
    assert " 21034 examples/s eta 0:20\nloss 0.25    accuracy 0.5" in last
    for step in range(501, 1001):
        clock.now = 10 + step / 10_000
        console.progress(step, loss=1.0, examples_per_second=1.0)
    assert [step for step in range(501, 1001) if f"step {step}/1000" in stream.getvalue()] == [1000]


def shown(stream):
    """Returns what was written without colours, movements of the cursor, and spaces at the ends of lines."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]| +(?=[\r\n])", "", stream.getvalue()).replace("\r", "\n")


def test_results_are_a_block_with_the_monitored_metric_first_and_changes(bar):
    console, stream = bar
    for step, loss, accuracy, best in ((100, 2.0, 0.5, 0.5), (200, 1.5, 0.75, 0.75), (300, 1.75, math.nan, 0.75)):
        console.log("validation", step, {"loss": loss, "accuracy": accuracy, "best_accuracy": best, "dev/loss": loss})
    console.log("validation", 400, {"loss": 1.0, "accuracy": 0.7, "best_accuracy": 0.75, "dev/loss": 1.0})
    console.log("validation", 500, {"accuracy": 0.75, "best_accuracy": 0.75})
    console.close()
    assert [line.rstrip() for line in shown(stream).splitlines()] == [
        "validation at step 100",
        "  accuracy  0.5  best so far",
        "  loss      2      dev/loss  2",
        "validation at step 200",
        "  accuracy  0.75  best so far, +0.25",
        "  loss      1.5   -0.5    dev/loss  1.5   -0.5",
        "validation at step 300",
        "  accuracy  nan   the best is 0.75",
        "  loss      1.75  +0.25    dev/loss  1.75  +0.25",
        "validation at step 400",
        "  accuracy  0.7  -0.05 from the best, 0.75",
        "  loss      1    -0.75    dev/loss  1    -0.75",
        "validation at step 500",
        "  accuracy  0.75  as good as the best",
    ]


def test_a_line_about_results_stands_below_them_and_is_not_lost(plain):
    console, lines = plain
    console.message("saved best/ckpt-5", after_results=True)
    console.log("validation", 5, {"accuracy": 0.5})
    console.message("saved best/ckpt-9", after_results=True)
    console.close()
    assert lines() == ["validation @ 5: accuracy 0.5", "saved best/ckpt-5", "saved best/ckpt-9"]


def test_the_metric_of_one_of_several_sets_is_monitored(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    console = Console(stream, end_step=9, monitored="dev|accuracy", clock=clock)
    console.log("validation", 9, {"loss": 1.0, "dev/accuracy": 0.5, "best_dev|accuracy": 0.5})
    console.close()
    assert "  dev/accuracy  0.5  best so far\n" in shown(stream)
    lines = io.StringIO()
    Console(lines, end_step=9, monitored="dev|accuracy").log("validation", 9, {"loss": 1.0, "dev/accuracy": 0.5})
    assert lines.getvalue() == "validation @ 9: dev/accuracy 0.5  loss 1\n"


LONG = {f"a_rather_long_name_of_metric_{number}": 10.0 ** (number - 6) for number in range(12)}
SETS = {f"{name}/{metric}": 0.5 for name in ("dev", "test_of_german_and_french") for metric in ("accuracy", "x" * 40)}


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 160])
@pytest.mark.parametrize("end_step", [100, 100_000_000, None])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_cut(columns, end_step, clock, monkeypatch):
    """With long names, many metrics, several sets, hours to go, NaN, and messages."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "40")
    stream = Terminal()
    console = Console(stream, end_step=end_step, monitored="dev|accuracy", clock=clock)
    last = end_step or 10
    messages = [
        "digits: 151,306 parameters on 2 GPUs, mirrored, starting in runs/a/rather/long/path",
        "time: 5 % of it, " * 9,
    ]
    for step in (0, last // 2, last):
        console.progress(step, loss=math.nan, examples_per_second=0.1234567)
        clock.now += 90_000
        console.log("train", step, {"training_loss": 0.12345, **LONG})
        console.doing("evaluating", step)
        console.log("validation", step, {**SETS, "best_dev|accuracy": 0.75, "loss": math.nan})
        for message in messages:
            console.message(message)
    console.hint("official-trainer eval --model_dir=runs/a/long/path --checkpoint=best")
    console.close()
    lines = shown(stream).splitlines()
    assert not [line for line in lines if len(line) > columns]
    words = {word for line in lines for word in line.split()}
    assert words >= {word for message in messages for word in message.split()}
    assert {"validation", "dev/accuracy", "loss", "0.75", "nan", "--model_dir=runs/a/long/path"} <= words
    assert any(line.startswith(f"step {last}") for line in lines)
    assert ("0.1235 examples/s" in shown(stream)) == (columns >= 60)
    if columns >= 80:
        assert words >= LONG.keys()


def test_what_happens_between_steps_is_shown_below_the_bar_only_while_it_does(bar):
    console, stream = bar
    console.log("train", 5, {"training_loss": 0.25})
    console.doing("evaluating", 5)
    assert shown(stream).rstrip().endswith("evaluating")
    many = {f"metric_{number}": 0.5 for number in range(20)}
    console.log("train", 5, many)
    last = shown(stream)[shown(stream).rindex("metric_0 ") :]
    assert "metric_15 0.5" in last and "metric_16" not in last and last.rstrip().endswith("…")
    console.log("train", 5, {"training_loss": 0.25})
    console.log("validation", 5, {"accuracy": 0.5})
    assert shown(stream).rstrip().endswith("loss 0.25")
    console.doing("exporting", 5)
    console.close()
    assert shown(stream).rstrip().endswith("loss 0.25")


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_work_that_takes_seconds_is_shown_while_it_does_and_leaves_nothing(monkeypatch, error):
    """Also when Ctrl-C or an error ends it: the cursor is back, and the line is empty."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with pytest.raises(error) if error else contextlib.nullcontext(), working("importing TensorFlow"):
        assert "importing TensorFlow" in shown(stream)
        if error:
            raise error
    hidden, back = stream.getvalue().rfind("\x1b[?25l"), stream.getvalue().rfind("\x1b[?25h")
    assert 0 <= hidden < back
    assert stream.getvalue().endswith("\x1b[2K")


@pytest.mark.parametrize(
    ("term", "quiet", "is_terminal"), [("dumb", 0, 1), ("", 0, 1), ("xterm", 1, 1), ("xterm", 0, 0)]
)
def test_where_nothing_can_be_redrawn_there_are_lines(monkeypatch, clock, term, quiet, is_terminal):
    """A `quiet` run shows nothing at all; work that takes seconds is not shown in any of these cases."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", stream := Terminal() if is_terminal else io.StringIO())
    with working("importing TensorFlow", quiet=bool(quiet)):
        pass
    console = Console(stream, end_step=10, quiet=bool(quiet), clock=clock)
    console.progress(5, loss=1.0, examples_per_second=1.0)
    console.log("validation", 5, {"loss": 1.0})
    console.close()
    assert stream.getvalue() == ("" if quiet else "step 5/10  loss 1\nvalidation @ 5: loss 1\n")


def test_numbers_and_durations_are_short():
    assert [format_number(value) for value in (0.97222, 3.0, 1234.56, 21034.4, 1e-5, 1e12, math.inf, -0.5)] == [
        *("0.9722", "3", "1235", "21034", "1e-05", "1e+12", "inf", "-0.5"),
    ]
    assert [format_seconds(value) for value in (0, 12.4, 75, 3723, 176523)] == [
        *("0:00", "0:12", "1:15", "1:02:03", "2d 1:02:03"),
    ]


def test_a_reader_that_is_gone_does_not_stop_a_run(clock, caplog):
    """What is shown is worth less than what is trained."""

    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError("Broken pipe")

    console = Console(Closed(), end_step=10, clock=clock)
    console.message("hello")
    console.progress(1, loss=1.0, examples_per_second=1.0)
    console.log("train", 2, {"loss": 1.0})
    console.close()
    assert caplog.messages == ["nothing more is shown: Broken pipe"]


@pytest.mark.parametrize("is_terminal", [False, True], ids=["lines", "bar"])
def test_control_characters_of_names_and_messages_do_not_reach_the_terminal(clock, monkeypatch, is_terminal):
    """N6: a metric of any name cannot clear the screen, or write a line that looks like one of ours."""
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal() if is_terminal else io.StringIO()
    console = Console(stream, end_step=10, clock=clock)
    console.log("train", 1, {"a\x1b]0;title\x07": 1.0})
    console.log("validation", 1, {"b\x1b[2J\nerror: c\r": 0.5})
    console.message("run \x9b31m in \x1b[31m")
    console.close()
    shown = stream.getvalue()
    assert r"a\x1b]0;title\x07" in shown
    assert re.search(r"b\\x1b\[2J\\nerror: c\\x0d +(\x1b\[1m)?0\.5", shown)
    assert r"run \x9b31m in \x1b[31m" in shown
    assert not any(code in shown for code in ("\x1b]0", "\x1b[2J", "\x1b[31m", "\x9b", "\x07"))
