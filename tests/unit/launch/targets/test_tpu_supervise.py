"""A slice that is taken away is made anew until its job has ended: with a slice of a few lines."""

import json
import os
import signal
import subprocess
import sys
from subprocess import CompletedProcess

import pytest

from official_trainer import cli
from official_trainer.errors import ExitCode
from official_trainer.launch import targets
from official_trainer.launch.target import Host
from official_trainer.launch.targets import tpu_supervise
from tests import ROOT
from tests.support.launch.rendered_google import NAME, TPU, profile_of, rendered
from tests.support.workspace import copy_workspace

RUN = "gs://bucket/run"
EXIT, STATUS = f"{RUN}/.launch/exit.json", f"{RUN}/status.json"
GONE = CompletedProcess((), 1, "", "ERROR: (gcloud) NOT_FOUND: Resource 'x' was not found\n")
NO_FILE = CompletedProcess(
    (), 1, "", "ERROR: (gcloud.storage.cat) The following URLs matched no objects or files:\nx\n"
)
FINE = CompletedProcess((), 0, "", "")


def failed(said):
    return CompletedProcess((), 1, "", f"Create request issued\nERROR: (gcloud) {said}\n")


class Slice:
    """A slice, and a user who watches it: what happens at each wait is what a test says.

    Attributes:
      calls: what was done: `create`, `clear`, `delete`.
      said: what the user was told.
      waits: for how long.
    """

    def __init__(self, *steps, create=(), stay=10):
        self.steps, self.create, self.stay = list(steps), list(create), stay
        self.state, self.hour, self.described = {"state": {"state": "ACTIVE"}}, 1, None
        self.calls, self.said, self.waits, self.files, self.unread = [], [], [], {}, None

    def run(self, argv):
        words = " ".join(argv)
        if " storage cat " in words:
            text = self.files.get(argv[-1])
            return self.unread or (NO_FILE if text is None else CompletedProcess((), 0, json.dumps(text), ""))
        if " describe " in words:
            answer = {**self.state, "createTime": f"2026-01-01T{self.hour:02}:00:00.5Z"}
            return self.described or CompletedProcess((), 0, json.dumps(answer), "")
        self.calls.append("clear" if argv[0] == "bash" else argv[4])
        if self.calls[-1] == "create":
            ran = self.create.pop(0) if self.create else FINE
            if ran.returncode == 0:
                self.hour, self.state = self.hour + 1, {"state": {"state": "ACTIVE"}}
            return ran
        return FINE

    def wait(self, seconds):
        self.waits.append(seconds)
        if self.steps:
            self.steps.pop(0)(self)
        return len(self.waits) >= self.stay

    def supervise(self, text=""):
        text = f"{TPU}{text}"
        host = Host(run=self.run, ask=self.run, say=self.said.append, wait=self.wait)
        return targets.get("tpu")(profile_of("tpu", text)).supervise(NAME, rendered("tpu", text).submit, RUN, host)


def loses(name, **data):
    """A step in which the slice is lost."""

    def step(slice_):
        slice_.state = {"state": {"state": name, **data}}

    return step


def ends(code, hour=20):
    """A step in which training ends."""

    def step(slice_):
        slice_.files[EXIT] = {"exit_code": code, "ended": f"2026-01-01T{hour:02}:00:00Z"}

    return step


def saves(number):
    def step(slice_):
        slice_.files[STATUS] = {"last_checkpoint_step": number}
        slice_.state = {"state": {"state": "SUSPENDED"}}

    return step


def nothing(slice_):
    pass


@pytest.mark.parametrize("name", ["SUSPENDED", "FAILED"])
def test_a_slice_that_is_taken_away_is_made_anew(name):
    """N20, N5: the same command, after a wait; it goes on from its run directory, and leaves nothing."""
    slice_ = Slice(saves(100), loses(name), nothing, ends(0))
    slice_.state = {"state": {"state": "WAITING_FOR_RESOURCES"}}
    outcome = slice_.supervise()
    assert (outcome.code, outcome.note) == (ExitCode.DONE, "")
    assert slice_.calls == ["clear", "create", "delete"]
    assert slice_.waits[:2] == [tpu_supervise.POLL_SECONDS, 30.0]
    assert slice_.said[0] == "the slice is WAITING_FOR_RESOURCES"
    assert "SUSPENDED: slice 2, from step 100, in 30 s" in slice_.said
    assert slice_.said[-2:] == [
        f"training has ended with exit code 0; its log is {RUN}/.launch/train.log",
        "slice deleted",
    ]


def test_a_slice_that_is_on_its_way_is_waited_for():
    """N20: nobody is told the same twice."""
    slice_ = Slice(nothing, nothing, loses("PROVISIONING"), loses("ACTIVE"), ends(0))
    slice_.state = {"state": {"state": "ACCEPTED"}}
    assert slice_.supervise().code == 0
    assert slice_.said[:3] == ["the slice is ACCEPTED", "the slice is PROVISIONING", "the slice is ACTIVE"]
    assert slice_.calls == ["delete"]


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 75])
def test_a_job_that_has_failed_is_not_tried_again(code):
    """N20: its exit code is that of the supervisor; also 75, once the machine has tried often enough."""
    slice_ = Slice(ends(code))
    outcome = slice_.supervise()
    assert (outcome.code, outcome.note) == (code, f"training has ended with exit code {code}")
    assert slice_.calls == ["delete"]


def test_the_end_of_an_earlier_slice_is_not_taken_for_this_one():
    """N20: a run directory keeps it; so a slice that has gone may have ended its job."""
    slice_ = Slice(nothing, lambda slice_: (ends(3)(slice_), loses("SUSPENDED")(slice_)))
    ends(2, hour=0)(slice_)
    assert slice_.supervise("keep: true").code == 3
    assert slice_.calls == []


def test_a_slice_that_cannot_be_deleted():
    """N20: the exit code stays the job's, and the user learns that it costs."""
    slice_ = Slice(ends(0))
    run = slice_.run
    slice_.run = lambda argv: failed("PERMISSION_DENIED") if " delete " in " ".join(argv) else run(argv)
    assert slice_.supervise().code == 0
    assert slice_.said[-1].startswith(
        "the slice cannot be deleted: ERROR: (gcloud) PERMISSION_DENIED. `official-trainer"
    )
    assert f"job cancel {NAME}` deletes it" in slice_.said[-1]


def test_it_gives_up_without_new_checkpoints():
    """N20: after max_restarts slices that brought none; each wait is twice as long, up to a quarter of an hour."""
    slice_ = Slice(stay=99)
    slice_.create = [failed("RESOURCE_EXHAUSTED: There is no more capacity in the zone")] * 20
    loses("SUSPENDED")(slice_)
    outcome = slice_.supervise("max_restarts: 7")
    assert outcome.code == ExitCode.FAILED
    assert "no more capacity in the zone: after 7 restarts there is no checkpoint" in outcome.note
    assert f"no other slice is created. `official-trainer job resume {NAME}` tries again" in outcome.note
    assert slice_.waits == [30, 60, 120, 240, 480, 900, 900]
    assert slice_.calls == ["clear", "create"] * 7


def test_checkpoints_keep_it_trying():
    """N20: as often as slices bring new ones."""
    slice_ = Slice(*(saves(number) for number in range(40)), stay=99)
    steps = slice_.steps
    slice_.steps = [step for save in steps for step in (save, nothing)] + [nothing, ends(0, hour=60)]
    assert slice_.supervise("max_restarts: 1").code == 0
    assert slice_.calls.count("create") == 40


def test_a_request_that_would_fail_again():
    """N20: is not made again."""
    slice_ = Slice()
    loses("FAILED", failedData={"error": {"code": 3, "message": "bad type"}})(slice_)
    outcome = slice_.supervise()
    assert outcome.code == ExitCode.FAILED
    assert "the slice has failed with 3: bad type; no other slice is created" in outcome.note
    assert not slice_.calls
    slice_ = Slice(create=[failed("PERMISSION_DENIED: nobody may")])
    loses("SUSPENDED")(slice_)
    outcome = slice_.supervise()
    said = "SUSPENDED, and no other slice: ERROR: (gcloud) PERMISSION_DENIED: nobody may; no other slice is created"
    assert outcome.code == ExitCode.FAILED and said in outcome.note


def test_what_somebody_has_taken_away_stays_away():
    """N20: `job cancel` in another terminal, or a hand on the console."""
    slice_ = Slice(lambda slice_: setattr(slice_, "described", GONE))
    outcome = slice_.supervise()
    assert outcome.code == ExitCode.PREEMPTED and "the slice does not exist; a user has deleted it" in outcome.note
    slice_ = Slice(loses("SUSPENDED", stateInitiator="USER"))
    outcome = slice_.supervise()
    assert outcome.code == ExitCode.PREEMPTED and "a user has stopped the slice" in outcome.note
    assert not slice_.calls


@pytest.mark.parametrize(
    ("unread", "said"),
    [
        (failed("timed out"), f"cannot read {EXIT}: ERROR: (gcloud) timed out"),
        (CompletedProcess((), 0, "{", ""), f"cannot read {EXIT}: Expecting property name"),
    ],
)
def test_a_slice_is_not_replaced_while_it_is_unknown_how_training_ended(unread, said):
    """N20: another slice costs money, and has nothing to do if training has ended."""
    slice_ = Slice(nothing, nothing, lambda slice_: setattr(slice_, "unread", None))
    ends(0)(slice_)
    loses("SUSPENDED")(slice_)
    slice_.unread = unread
    assert slice_.supervise().code == 0
    assert [text for text in slice_.said if text.startswith(said)] and slice_.calls == ["delete"]
    slice_ = Slice(stay=99)
    slice_.unread = unread
    outcome = slice_.supervise()
    assert outcome.code == ExitCode.RETRY and f"gcloud has failed 20 times in a row: {said}" in outcome.note


def test_gcloud_that_fails_for_a_while():
    """N20: an hour without a network ends it, minutes do not; the slice does not care."""
    slice_ = Slice(*[nothing] * 5, lambda slice_: setattr(slice_, "described", None), ends(0))
    slice_.described = failed("timed out")
    assert slice_.supervise().code == 0
    assert slice_.said.count("cannot see the slice: ERROR: (gcloud) timed out") == 1
    slice_ = Slice(stay=99)
    slice_.described = failed("timed out")
    outcome = slice_.supervise()
    assert outcome.code == ExitCode.RETRY
    assert (
        "gcloud has failed 20 times in a row: cannot see the slice: ERROR: (gcloud) timed out. The slice still runs"
        in outcome.note
    )


def test_leaving_leaves_the_slice():
    """N20: Ctrl-C, also between two slices."""
    slice_ = Slice(stay=1)
    outcome = slice_.supervise()
    assert outcome.was_asked and outcome.code == ExitCode.PREEMPTED
    assert f"The slice still runs, and costs money. `official-trainer job cancel {NAME}` deletes it" in outcome.note
    slice_ = Slice(loses("SUSPENDED"), stay=2)
    outcome = slice_.supervise()
    assert outcome.was_asked and outcome.code == ExitCode.PREEMPTED
    assert outcome.note == f"SUSPENDED; `official-trainer job resume {NAME}` creates another slice"
    assert not slice_.calls


# Through the command line, with a gcloud of a few lines.

STUB = """#!/bin/bash
echo "$*" >>"$STUB_CALLS"
case "$*" in
*" describe "*) echo '{"state": {"state": "WAITING_FOR_RESOURCES"}, "createTime": "2026-01-01T00:00:00Z"}' ;;
*" ssh "*) echo a line ;;
esac
"""


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A workspace, a profile, and a gcloud that has a slice in its queue for ever."""
    folder = tmp_path / "workspace"
    copy_workspace(folder, "experiments")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gcloud").write_text(STUB)
    (tmp_path / "bin" / "gcloud").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("STUB_CALLS", str(tmp_path / "calls"))
    monkeypatch.chdir(folder)
    (folder / "tpu.yaml").write_text(f"{TPU}name: digits\n")
    return folder


WORDS = ["launch", "tpu", "--profile=tpu.yaml", "--submit", "--", "digits_mlp", "--model_dir=gs://bucket/run"]


def test_the_words_of_gcloud(workspace, capfd):
    """N20: submitted, seen to, cancelled; while it has not ended it is not submitted again."""
    assert cli.main(WORDS) == 0
    name = capfd.readouterr().out.partition(" ")[0]
    assert cli.main(WORDS) == ExitCode.CONFIG
    assert f"`official-trainer job cancel {name}` ends it" in capfd.readouterr().err
    for action in ("status", "logs", "cancel"):
        assert cli.main(["job", action, name]) == 0
    out = capfd.readouterr().out
    assert "WAITING_FOR_RESOURCES" in out and "a line" in out
    verbs = [line.split()[3] for line in (workspace.parent / "calls").read_text().splitlines()]
    assert verbs == ["create", "describe", "describe", "ssh", "describe", "delete"]
    assert f"{name} was deleted; it was waiting_for_resources before\n" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_slice(workspace, capfd, number):
    """N20: at once, with what it costs; nothing is deleted. No TensorFlow is imported."""
    assert cli.main(WORDS) == 0
    name = capfd.readouterr().out.partition(" ")[0]
    boot = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from official_trainer import cli; code = cli.main()\n"
        "assert 'tensorflow' not in sys.modules; sys.exit(code)"
    )
    command = [sys.executable, "-c", boot, str(ROOT), "job", "supervise", name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().endswith("the slice is WAITING_FOR_RESOURCES\n")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.PREEMPTED
    assert f"stopped: The slice still runs, and costs money. `official-trainer job cancel {name}` deletes it" in err
    assert " delete " not in (workspace.parent / "calls").read_text()
