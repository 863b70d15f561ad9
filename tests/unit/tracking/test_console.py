import io
import math

import pytest

from official_trainer.tracking.console import Console, format_number, format_seconds
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
    console, lines = plain
    console.progress(100, loss=2.5, examples_per_second=3.0)
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


def test_plain_progress_is_one_line_each_few_seconds(plain, clock):
    console, lines = plain
    for step in range(1, 101):
        clock.now = step / 10
        console.progress(step, loss=1.0, examples_per_second=1.0)
    assert [line.split()[1] for line in lines()] == ["1/1000", "51/1000"]


def test_an_unknown_end_and_a_rewind_give_no_time_left(clock):
    stream = io.StringIO()
    console = Console(stream, end_step=None, clock=clock)
    console.progress(100, loss=1.0, examples_per_second=5.0)
    clock.now = 10.0
    console.progress(200, loss=math.nan, examples_per_second=5.0)
    console.set_end_step(400)
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


def test_quiet_is_silent(clock):
    stream = Terminal()
    console = Console(stream, end_step=10, quiet=True, clock=clock)
    console.progress(10, loss=1.0, examples_per_second=1.0)
    console.log("train", 10, {"loss": 1.0})
    console.log("validation", 10, {"loss": 1.0})
    console.message("saved")
    console.close()
    assert stream.getvalue() == ""


@pytest.fixture
def bar(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    console = Console(stream, end_step=1000, clock=clock)
    yield console, stream
    console.close()


def test_a_terminal_has_a_bar_and_lines_above_it(bar, clock):
    console, stream = bar
    console.message("digits_cnn")
    console.progress(250, loss=0.5, examples_per_second=21.0)
    console.log("validation", 250, {"[b]accuracy": 0.9722})
    assert "step 250/1000" in stream.getvalue()
    assert "━" in stream.getvalue()
    assert "validation @ 250: [b]accuracy 0.9722\n" in stream.getvalue()
    clock.now = 10.0
    console.progress(500, loss=0.5, examples_per_second=21034.0)
    console.log("train", 500, {"accuracy": 0.5, "training_loss": 0.25})
    assert "loss 0.25" in stream.getvalue()
    assert "accuracy 0.5" not in stream.getvalue()
    assert "21034 examples/s" in stream.getvalue()
    assert "eta 0:20" in stream.getvalue()


def test_a_bar_is_drawn_a_few_times_a_second_and_always_at_the_end(bar, clock):
    console, stream = bar
    for step in range(1, 1001):
        clock.now = step / 10_000
        console.progress(step, loss=1.0, examples_per_second=1.0)
    shown = [step for step in range(1, 1001) if f"step {step}/1000" in stream.getvalue()]
    assert shown == [1, 1000]


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch, clock, term):
    monkeypatch.setenv("TERM", term)
    stream = Terminal()
    Console(stream, end_step=10, clock=clock).progress(5, loss=1.0, examples_per_second=1.0)
    assert stream.getvalue() == "step 5/10  loss 1\n"


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
    assert r"validation @ 1: b\x1b[2J\nerror: c\x0d 0.5" in shown
    assert r"run \x9b31m in \x1b[31m" in shown
    assert not any(code in shown for code in ("\x1b]0", "\x1b[2J", "\x1b[31m", "\x9b", "\x07"))
