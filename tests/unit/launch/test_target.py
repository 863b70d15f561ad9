"""What each scheduler's answer says of a job, in the words that the real programs print: running, ended, or unknown."""

import dataclasses
import json
import sys
from subprocess import CompletedProcess

import pytest

from official_trainer import cli
from official_trainer.config import ConfigError, resolve
from official_trainer.launch import launches, targets
from official_trainer.launch.target import GONE, JobState, Phase, last_error
from official_trainer.shown import shorten
from tests.support.launch.rendered_google import TPU, VERTEX
from tests.support.packages import entry_point

KUBE = "image: x\ncontext: lab\n"
PLACES = {"slurm": "workers: 1\n", "kubernetes": KUBE, "tpu": TPU, "vertex": VERTEX}
FULL = "projects/1/locations/us-central1/customJobs/42"
NAME = "digits-1a2b3c4d"
IDS = {"slurm": "4711", "kubernetes": NAME, "tpu": "digits-1a2b3c4d", "vertex": FULL}

SQUEUE = "JOBID                         STATE                         \n"
KUBECTL = "NAME              STATE       SUSPENDED\n"


def target_of(name, profile=None):
    target = targets.get(name)
    return target(resolve(target.profile_class(), params_overrides=[profile or PLACES[name]]).config)


def states(name, job_ids, code, out, err=""):
    """Returns the states of jobs from an answer of their scheduler."""
    target = target_of(name)
    return list(target.states(job_ids, CompletedProcess(target.query(job_ids), code, out, err)))


def running(text):
    return JobState(Phase.RUNNING, text)


def ended(text):
    return JobState(Phase.ENDED, text)


@pytest.mark.parametrize(
    ("name", "out", "expected"),
    [
        ("slurm", "4711 PENDING", running("pending")),
        ("slurm", "4711 REQUEUE_HOLD", running("requeue_hold")),
        ("slurm", "4711 COMPLETED", ended("completed")),
        ("slurm", "4711 OUT_OF_MEMORY", ended("out_of_memory")),
        ("slurm", "4711_0 COMPLETED\n4711_1 RUNNING\n4711_2 RUNNING", running("2 running, 1 completed")),
        ("slurm", "4711_0 COMPLETED\n4711_1 FAILED\n4711_2 COMPLETED", ended("2 completed, 1 failed")),
        ("kubernetes", "digits-1a2b3c4d <none> <none>", running("running")),
        ("kubernetes", "digits-1a2b3c4d <none> true", running("suspended")),
        ("kubernetes", "digits-1a2b3c4d Completed false", ended("completed")),
        ("kubernetes", "digits-1a2b3c4d Failed false", ended("failed")),
        ("tpu", {"state": {"state": "WAITING_FOR_RESOURCES"}}, running("waiting_for_resources")),
        ("tpu", {"state": {"state": "FAILED"}}, ended("failed")),
        ("tpu", {"state": {"state": "SUSPENDING"}}, ended("suspending")),
        ("vertex", {"state": "JOB_STATE_QUEUED"}, running("queued")),
        ("vertex", {"state": "JOB_STATE_SUCCEEDED"}, ended("succeeded")),
        ("vertex", {"state": "JOB_STATE_CANCELLED"}, ended("cancelled")),
    ],
)
def test_what_an_engine_says_of_a_job(name, out, expected):
    """N20: in its own word."""
    heading = {"slurm": SQUEUE, "kubernetes": KUBECTL, "kubeflow": KUBECTL}.get(name, "")
    out = out if isinstance(out, str) else json.dumps(out)
    assert states(name, [IDS[name]], 0, heading + out) == [expected]


@pytest.mark.parametrize(
    ("name", "err"),
    [
        ("slurm", "slurm_load_jobs error: Invalid job id specified"),
        ("kubernetes", 'Error from server (NotFound): jobsets.jobset.x-k8s.io "digits-1a2b3c4d" not found'),
        ("tpu", "ERROR: (gcloud.compute.tpus.queued-resources.describe) NOT_FOUND: Resource 'x' was not found"),
        ("vertex", "ERROR: (gcloud.ai.custom-jobs.describe) NOT_FOUND: The CustomJob does not exist."),
    ],
)
def test_a_job_that_is_not_there_any_more(name, err):
    """N20: has ended; the scheduler says so with an exit code that other errors have, too."""
    assert states(name, [IDS[name]], 1, "", f"{err}\n") == [GONE]


TOKEN = "ERROR: (gcloud.ai.custom-jobs.describe) There was a problem refreshing your current auth tokens: timed out"
DENIED = "ERROR: (gcloud.ai.custom-jobs.describe) PERMISSION_DENIED: Permission 'aiplatform.customJobs.get' denied"


@pytest.mark.parametrize(
    ("name", "err", "line"),
    [
        ("slurm", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 0),
        (
            "kubernetes",
            'Error from server (Forbidden): jobsets.jobset.x-k8s.io "digits-1a2b3c4d" is forbidden: User "me"',
            0,
        ),
        ("kubernetes", 'Error from server (NotFound): jobsets.jobset.x-k8s.io "digits" not found', 0),
        ("kubernetes", 'Error from server (NotFound): namespaces "team" not found', 0),
        ("kubernetes", 'E1 memcache.go:265] x\nerror: the server doesn\'t have a resource type "jobsets"', 1),
        ("vertex", f"{DENIED} on resource 'x'.\n- '@type': type.googleapis.com/google.rpc.ErrorInfo\n  domain: x", 0),
        ("tpu", f"{TOKEN}\nPlease run:\n\n  $ gcloud auth login\n", 0),
    ],
)
def test_an_engine_that_fails_does_not_say_that_a_job_has_ended(name, err, line):
    """N20: its line that says why is kept."""
    (state,) = states(name, [IDS[name]], 1, "", f"{err}\n")
    assert state == JobState(Phase.UNKNOWN, err.splitlines()[line])


@pytest.mark.parametrize(
    ("name", "out"),
    [
        ("slurm", SQUEUE),  # the job is hidden
        ("slurm", ""),
        ("slurm", "4711 is quite all right\n"),
        ("slurm", f"{SQUEUE}4712 COMPLETED"),
        ("kubernetes", ""),
        ("kubernetes", KUBECTL),
        ("kubernetes", "digits-1a2b3c4d Completed\n"),
        *((name, out) for name in ("tpu", "vertex") for out in ("", "Hello", "{}", "[]", "null", '{"state": 7}', "7")),
    ],
)
def test_an_answer_that_cannot_be_read_does_not_say_that_a_job_has_ended(name, out):
    """N20: it is repeated, because a person has to see to it."""
    (state,) = states(name, [IDS[name]], 0, out)
    assert state.phase is Phase.UNKNOWN
    program = {"slurm": "squeue", "kubernetes": "kubectl"}.get(name, "gcloud")
    assert state.text == f"{program} printed {shorten(out.strip())!r}, which says nothing of the job"


@pytest.mark.parametrize(
    ("name", "job_ids", "out", "err", "expected"),
    [
        (
            "slurm",
            ["1", "2", "3"],
            f"{SQUEUE}1 RUNNING\n3_0 PENDING\n3_1 PENDING\n",
            "",
            [running("running"), GONE, running("pending")],
        ),
        ("slurm", ["1", "2"], SQUEUE, "", [GONE, GONE]),
        (
            "kubernetes",
            ["a", "b", "c"],
            f"{KUBECTL}a Completed false\nc <none> false\n",
            'Error from server (NotFound): jobsets.jobset.x-k8s.io "b" not found\n',
            [ended("completed"), GONE, running("running")],
        ),
        (
            "tpu",
            ["a", "b", "c"],
            json.dumps([{"name": "projects/p/locations/z/queuedResources/c", "state": {"state": "ACTIVE"}}]),
            "",
            [GONE, GONE, running("active")],
        ),
        (
            "vertex",
            ["projects/1/locations/r/customJobs/4", "projects/1/locations/r/customJobs/42"],
            json.dumps([{"name": "projects/1/locations/r/customJobs/42", "state": "JOB_STATE_FAILED"}]),
            "",
            [GONE, ended("failed")],
        ),
    ],
)
def test_several_jobs_of_one_place(name, job_ids, out, err, expected):
    """N20: are in one answer; kubectl ends with 1 if one of them is gone."""
    assert states(name, job_ids, int(bool(err)), out, err) == expected


def test_several_jobs_and_an_engine_that_fails():
    """N20: all of them are unknown, also if it says that something is not there."""
    for name, err in (
        ("slurm", "slurm_load_jobs error: Invalid job id specified"),
        ("tpu", "ERROR: (gcloud.compute.tpus.queued-resources.list) NOT_FOUND: Project 'x' was not found"),
        ("vertex", "ERROR: (gcloud.ai.custom-jobs.list) NOT_FOUND: Project 'x' was not found"),
    ):
        assert states(name, ["1", "2"], 1, "", err) == [JobState(Phase.UNKNOWN, err)] * 2


def test_the_queries_of_one_place():
    """N20: jobs are asked for by one command each place, and by their own where there is one."""
    assert target_of("slurm").query(["1", "2"])[:4] == ("squeue", "--states=all", "--array", "--jobs=1,2")
    kubectl = target_of("kubernetes").query(["a", "b"])
    assert kubectl[:6] == ("kubectl", "--context=lab", "get", "jobsets.jobset.x-k8s.io", "a", "b")
    tpu, vertex = target_of("tpu"), target_of("vertex")
    assert (tpu.query(["a"]), vertex.query([FULL])) == (tpu.status("a"), vertex.status(FULL))
    assert tpu.query(["a", "b"])[4:6] == ("list", "--format=json(name,createTime,state)")
    listed = ("list", '--filter=name~"/(42|7)$"', "--limit=2", "--format=json(name,state)")
    assert vertex.query([FULL, "projects/1/locations/us-central1/customJobs/7"])[3:7] == listed
    elsewhere = target_of("kubernetes", "image: x\ncontext: lab\nnamespace: team\n")
    assert target_of("kubernetes").query(()) == (*kubectl[:4], kubectl[6]) != elsewhere.query(())


def test_why_a_command_has_failed():
    assert last_error(CompletedProcess((), 7, "", " \n")) == "exit code 7"
    assert last_error(CompletedProcess((), 7, "", "a\nb\n\n")) == "b"


RECORD = launches.Record(
    target="slurm", name="", id="", model_dir="", submitted_at="", argv=(), submit=(), files=(), profile={}
)


@pytest.mark.parametrize(
    ("target", "before", "kept", "other"),
    [
        ("kubernetes", {"image": "a/b:1", "queue": "a"}, {"kind": "jobset"}, {"kind": "tfjob"}),
        ("tpu", {"project": "my-project", "spot": True, "labels": {"a": "b"}}, {"queued": True}, {"queued": False}),
    ],
)
def test_jobs_that_an_earlier_version_submitted(target, before, kept, other):
    """N20: are managed, though fields are gone; one of another kind is not taken for one of these."""
    record = dataclasses.replace(RECORD, target=target, profile={"workers": 1, **before, **kept})
    assert launches.target_of(record).status("digits")[0] in ("kubectl", "gcloud")
    with pytest.raises(ConfigError, match=f"{next(iter(other))}: this field was removed"):
        launches.target_of(dataclasses.replace(record, profile={**before, **other}))


LAB = """
from official_trainer.launch.targets.slurm import Slurm


class Lab(Slurm):
    name = "lab"
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes an installed package whose entry point names a module with this text."""

    def install(text, package="lab_engines", name="lab"):
        folder = tmp_path / package
        entry_point(folder, f"{package}_module", name, "launch_targets", package)
        (folder / f"{package}_module.py").write_text(text)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, f"{package}_module", raising=False)

    return install


def test_a_target_of_an_installed_package(package, capsys):
    """T27: `launch` knows it in its help and in what it says of others, and runs it."""
    package(LAB)
    assert cli.main(["launch", "--help"]) == 0
    assert "one of local, kubernetes, lab, slurm, tpu, vertex" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["launch", "lab", "--help"]) == 0
    assert "Fields of a profile, launch/lab.yaml" in capsys.readouterr().out
    assert cli.main(["launch", "lba"]) == 2
    assert ", not lba; did you mean lab?\n" in capsys.readouterr().err
    assert target_of("lab", "workers: 2").profile.workers == 2
    assert "lab" in [target.name for target in targets.importable()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import no_such_module",
            "error: the launch target lab of lab_engines cannot be imported: ModuleNotFoundError: No module named "
            "'no_such_module'. Install it again: pip install --force-reinstall lab_engines\n",
        ),
        (
            LAB.replace('"lab"', '"other"'),
            'error: the launch target lab: lab_engines_module must define a subclass of Target with name = "lab"\n',
        ),
    ],
)
def test_a_target_of_an_installed_package_that_is_wrong(text, said, package, capsys):
    """N7: it is said, also of a job that it runs; the others are there."""
    package(text)
    assert cli.main(["launch", "lab", "digits_cnn"]) == 2
    assert capsys.readouterr().err == said
    with pytest.raises(launches.RecordError, match="x-1: the launch target lab"):
        launches.target_of(dataclasses.replace(RECORD, target="lab", name="x-1"))
    assert [target.name for target in targets.importable()] == list(targets.own_names())


def test_two_targets_with_one_name(package, capsys):
    """N7: both packages are named; a target of this package is never replaced."""
    package(LAB)
    package(LAB, "others")
    package("import no_such_module", "third", "slurm")
    assert targets.get("slurm").name == "slurm"
    assert cli.main(["launch", "lab", "digits_cnn"]) == 2
    assert "the launch target lab is in two packages, lab_engines and others: pip uninstall " in capsys.readouterr().err
