"""Jobs on a real Slurm of two nodes on loopback: they train, are preempted, go on, are cancelled, and sweep."""

import contextlib
import json
import os
import re
import signal
import warnings
from pathlib import Path

import pytest

from official_trainer import cli
from official_trainer.launch.verbs import job as verb
from tests.support import runs
from tests.support.sweeps.postgresql import is_there, postgresql

SMOKE = "--config_file=configs/smoke/digits_mlp.yaml"
LONG = ["digits_mlp", "--mode=train", "trainer.steps_per_loop=20", "trainer.checkpoint_interval=1000"]


def profile(**fields):
    """Writes a profile for two nodes, on a file system that they share."""
    Path("launch").mkdir(exist_ok=True)
    Path("launch/two.yaml").write_text(json.dumps({"nodes": 2, "workers": 2, "node_local": [], **fields}))


def submit(capfd, *words):
    """Submits a job, and returns its record."""
    capfd.readouterr()
    assert cli.main(["launch", "slurm", "--profile=launch/two.yaml", "--submit", "--", *words]) == 0
    name = re.search(r"^(\S+) was submitted to slurm as \d+", capfd.readouterr().out, flags=re.MULTILINE)[1]
    return json.loads(Path("launches", name, "launch.json").read_text())


def job(capfd, *words):
    """Runs `job`, and returns what it prints."""
    capfd.readouterr()
    assert cli.main(["job", *words]) == 0
    return capfd.readouterr().out


def log(record, name="slurm.out"):
    path = Path("launches", record["name"], name)
    return path.read_text() if path.exists() else ""


def state(capfd, record):
    """Returns state and number of restarts, as `job status` says them."""
    return job(capfd, "status", record["name"]).splitlines()[-1].split()[1:3]


def ended(slurm, record):
    slurm.until(lambda: not [each for each in slurm.jobs() if each.split("_")[0] == record["id"]], "the job has ended")


def reached(slurm, record, text):
    slurm.until(lambda: text in log(record), f"{text!r} is in {log(record)}")


def test_two_nodes_train_one_run_and_share_its_predictions(slurm, capfd):
    """N20: submitted by one command each; both nodes take part, the names of files are whatever they are."""
    profile(environ={"A": "b c"}, srun=["--cpu-bind=none"])
    model_dir = Path('a run\'s $(touch oops) `touch oops`; "x"').resolve()
    record = submit(capfd, "digits_mlp", SMOKE, "--mode=train", f"--model_dir={model_dir}")
    assert slurm.jobs()[record["id"]] in ("PENDING", "CONFIGURING", "RUNNING")
    assert cli.main(["launch", "slurm", "--submit", "digits_mlp", f"--model_dir={model_dir}"]) == 2
    ended(slurm, record)
    assert state(capfd, record) == ["COMPLETED", "0"], log(record)
    said = job(capfd, "logs", record["name"])
    assert "on 2 CPUs of 2 workers, mirrored" in said and "0: finished at step 20" in said
    assert json.loads((model_dir / "run.json").read_text())["experiment"] == "digits_mlp"
    names = sorted(os.listdir(Path("launches", record["name"])))
    assert names[0].startswith("code-") and names[1:] == ["job.sbatch", "launch.json", "slurm.out"]
    words = ["predict", "digits_mlp", SMOKE, f"--model_dir={model_dir}", "--format=jsonl", "--shard_size=64"]
    predicting = submit(capfd, *words)
    assert predicting["name"] != record["name"] and predicting["model_dir"] == record["model_dir"]
    ended(slurm, predicting)
    assert state(capfd, predicting) == ["COMPLETED", "0"], log(predicting)
    found = json.loads((model_dir / "predictions" / "predictions.json").read_text())
    rows = [json.loads(line) for path in (model_dir / "predictions").glob("*.jsonl") for line in path.open()]
    assert len(rows) == sum(shard["rows"] for shard in found["shards"]) == 360
    assert re.findall(r"(?m)^([01]): .*predictions of ckpt-20 in", log(predicting)) in (["0", "1"], ["1", "0"])
    assert not list(Path().rglob("oops"))


def test_each_process_has_gpus_of_its_own(slurm, capfd, tmp_path):
    """N20: in all roles, by what Slurm says it may see; the devices are stand-ins."""
    says = tmp_path / "says"
    says.write_text('#!/bin/sh\necho "$OFFICIAL_TRAINER_ROLE $SLURM_PROCID: $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"\n')
    says.chmod(0o755)
    profile(workers=2, ps=1, tasks_per_node=2, resources={"gpus": 1}, python=str(says))
    record = submit(capfd, "digits_mlp", "--model_dir=run")
    ended(slurm, record)
    said = re.findall(r"(\w+ \d): (n\d \d)$", job(capfd, "logs", record["name"]), flags=re.MULTILINE)
    assert sorted(said) == [("chief 0", "n1 0"), ("ps 0", "n2 1"), ("worker 0", "n1 1"), ("worker 1", "n2 0")]
    profile(workers=2, resources={"gpus": 2}, python=str(says))
    record = submit(capfd, "digits_mlp", "--model_dir=other")
    ended(slurm, record)
    assert sorted(re.findall(r"(\d): (n\d [\d,]+)$", log(record), flags=re.MULTILINE)) == [
        ("0", "n1 0,1"),
        ("1", "n2 0,1"),
    ]


def waiting(tmp_path):
    """Writes a profile for a job of one process, which ends once the file `go` is in the workspace."""
    (tmp_path / "waits").write_text(f"#!/bin/sh\nuntil [ -e {tmp_path}/go ]; do sleep 0.1; done\n")
    (tmp_path / "waits").chmod(0o755)
    profile(nodes=1, workers=1, python=str(tmp_path / "waits"))


def test_two_jobs_of_one_run_directory_follow_each_other(slurm, capfd, tmp_path, monkeypatch):
    """N20: also if the record of the first is lost; what is requeued does not wait for itself, nor for the second."""
    waiting(tmp_path)
    first = submit(capfd, "digits_mlp", "--model_dir=run")
    slurm.until(lambda: slurm.jobs()[first["id"]] == "RUNNING", "the first job runs")
    Path("launches", first["name"], "launch.json").unlink()
    second = submit(capfd, "digits_mlp", "--model_dir=run")
    assert (second["name"], second["id"] != first["id"]) == (first["name"], True)
    reason = ("squeue", "--noheader", "--format=%T %r", f"--jobs={second['id']}")
    slurm.until(lambda: slurm(*reason).stdout == "PENDING Dependency\n", "the second waits, beside a node that is free")
    assert slurm("scontrol", "requeue", first["id"]).returncode == 0
    slurm.until(lambda: slurm.jobs()[first["id"]] == "PENDING", "the first is back in the queue")
    slurm.until(lambda: slurm.jobs()[first["id"]] == "RUNNING", "the first runs again")
    assert slurm.jobs()[second["id"]] == "PENDING"
    other = submit(capfd, "digits_mlp", "--model_dir=other")
    assert f"{other['name']} was cancelled; it was pending before\n" in job(capfd, "cancel", other["name"])
    ended(slurm, other)
    said = f"{other['name']} has ended already (cancelled); nothing was cancelled\n"
    assert job(capfd, "cancel", other["name"]) == said
    Path("go").touch()
    monkeypatch.setattr(verb, "_POLL_SECONDS", 0.1)
    states = [line.split()[1] for line in job(capfd, "watch", second["name"]).splitlines()]
    assert states[0] == "pending" and states[-1] == "completed"
    assert not slurm.jobs()
    said = f"{second['name']} has ended already (completed); nothing was cancelled\n"
    assert job(capfd, "cancel", second["name"]) == said


def test_a_controller_that_cannot_be_asked(slurm, capfd, tmp_path, monkeypatch):
    """N20: no second job is submitted; `job list` says that it does not know."""
    waiting(tmp_path)
    record = submit(capfd, "digits_mlp", "--model_dir=run")
    other = submit(capfd, "digits_mlp", "--model_dir=other")
    again = ["launch", "slurm", "--profile=launch/two.yaml", "--submit", "digits_mlp", "--model_dir=run"]
    slurm.until(lambda: slurm.jobs()[record["id"]] == "RUNNING", "the job runs")
    text = Path(os.environ["SLURM_CONF"]).read_text()
    (tmp_path / "elsewhere.conf").write_text(re.sub(r"(?m)^SlurmctldPort=.*", "SlurmctldPort=1", text))
    with monkeypatch.context() as changed:
        changed.setenv("SLURM_CONF", str(tmp_path / "elsewhere.conf"))
        changed.setattr(verb, "_LIST_SECONDS", 60)
        assert cli.main(again) == 1
        why = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
        assert f"it is not known whether it has ended, so nothing was started: {why}\n" in capfd.readouterr().err
        assert cli.main(["job", "list"]) == 0
        out, err = capfd.readouterr()
        assert [row.split()[3] for row in out.splitlines()[1:]] == ["unknown", "unknown"] and why in err
    assert cli.main(again) == 2
    assert "has not ended (running)" in capfd.readouterr().err
    assert slurm.jobs().keys() == {record["id"], other["id"]}
    monkeypatch.setenv("SQUEUE_PARTITION", "high")  # the jobs are in another one
    assert cli.main(again) == 2
    assert "has not ended (running)" in capfd.readouterr().err
    assert [row.split()[3] for row in job(capfd, "list").splitlines()[1:]] == ["running", "running"]
    monkeypatch.delenv("SQUEUE_PARTITION")
    Path("go").touch()


def test_a_job_that_slurm_has_forgotten(slurm, capfd, tmp_path):
    """N20: has ended, asked alone or with others, and may be submitted again."""
    waiting(tmp_path)
    Path("go").touch()
    record = submit(capfd, "digits_mlp", "--model_dir=run")
    ended(slurm, record)
    path = Path("launches", record["name"], "launch.json")
    path.write_text(json.dumps({**record, "id": "999999"}))
    assert [row.split()[3] for row in job(capfd, "list").splitlines()[1:]] == ["ended"]
    assert cli.main(["job", "watch", record["name"]]) == 75
    assert job(capfd, "cancel", record["name"]).startswith(f"slurm no longer has {record['name']}, so it has ended")
    other = submit(capfd, "digits_mlp", "--model_dir=other")
    ended(slurm, other)
    states = {row.split()[2]: row.split()[3] for row in job(capfd, "list").splitlines()[1:]}
    assert states == {"999999": "ended", other["id"]: "completed"}
    ended(slurm, submit(capfd, "digits_mlp", "--model_dir=run"))


@pytest.mark.full
def test_a_chief_workers_servers_and_an_evaluator(slurm, capfd):
    """N20: a step of srun for each role; all end when the chief has, and the evaluator after its last checkpoint."""
    profile(workers=1, ps=1, evaluator=True)
    record = submit(capfd, "digits_mlp", SMOKE, "--model_dir=run")
    ended(slurm, record)
    assert state(capfd, record) == ["COMPLETED", "0"], log(record)
    assert "strategy parameter_server: 1 workers, 1 ps" in log(record)
    assert "finished at step 20" in log(record)
    assert "ps 0 serves at" in log(record, "ps.out")
    assert "validation @ 20" in log(record, "evaluator.out")


@pytest.mark.full
def test_a_job_that_is_preempted_goes_on_by_itself(slurm, capfd):
    """N20: it saves, makes room, comes back, and ends as if it had not been broken off, bit by bit."""
    profile(partition="low")
    words = [*LONG, "trainer.train_steps=1500", "trainer.summary_interval=100"]
    record = submit(capfd, *words, "--model_dir=run")
    reached(slurm, record, "step 100/1500")
    assert slurm("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true").stdout
    reached(slurm, record, "back to the queue, restart 1 of 10")
    ended(slurm, record)
    assert state(capfd, record) == ["COMPLETED", "1"], log(record)
    (stopped,) = re.findall(r"0: stopped: .*at step (\d+), which is saved", log(record))
    assert 100 <= int(stopped) < 1500
    unbroken = submit(capfd, *words, "--model_dir=unbroken")
    ended(slurm, unbroken)
    assert runs.differences("run", "unbroken") == []


MARKED = """
print("this is version 1 of the code")
from experiments import digits
from official_trainer import register_config_factory

@register_config_factory("marked")
def marked():
    return digits.digits_mlp()
"""


def test_a_requeued_job_runs_the_code_that_was_submitted(slurm, capfd):
    """N33: though the workspace was edited; then other code is a change, which has to be allowed."""
    profile(nodes=1, workers=1)
    marked = Path("experiments/marked.py")
    marked.write_text(MARKED)
    words = ["marked", *LONG[1:], "trainer.train_steps=100000", "trainer.summary_interval=100", "--model_dir=run"]
    record = submit(capfd, *words)
    reached(slurm, record, "step 100/")
    marked.write_text(MARKED.replace("version 1", "version 2"))
    assert slurm("scontrol", "requeue", record["id"]).returncode == 0
    reached(slurm, record, "continuing from step")
    said = log(record)
    assert said.count("this is version 1 of the code") >= 2 and "version 2" not in said
    job(capfd, "cancel", record["name"])
    ended(slurm, record)
    run = json.loads(Path("run/run.json").read_text())
    assert run["workspace"] == str(Path.cwd())
    assert Path(run["code"]["path"]).parent == Path("launches", record["name"]).resolve()
    capfd.readouterr()
    assert cli.main(["show", "run", "--code"]) == 0
    shown = capfd.readouterr().out
    assert '-print("this is version 1 of the code")\n+print("this is version 2 of the code")\n' in shown
    again = ["launch", "slurm", "--profile=launch/two.yaml", "--submit", "--", *words]
    assert cli.main(again) == 2
    refusal = capfd.readouterr().err
    assert "the code is not the one that ckpt-" in refusal and "changed: experiments/marked.py" in refusal
    record = submit(capfd, *words, "--allow_config_change")
    reached(slurm, record, "this is version 2 of the code")
    job(capfd, "cancel", record["name"])


@pytest.mark.full
def test_servers_stay_until_their_chief_has_saved(slurm, capfd):
    """N20: a preemption tells all of them at once, and what a server holds would be gone before it is saved."""
    profile(partition="low", workers=2, ps=1)
    words = [*LONG, "trainer.train_steps=1500", "trainer.summary_interval=100", "trainer.checkpoint_interval=100000"]
    record = submit(capfd, *words, "--model_dir=run")
    reached(slurm, record, "step 100/1500")
    assert slurm("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true").stdout
    reached(slurm, record, "exit code 143: back to the queue, restart 1 of 10")
    (stopped,) = re.findall(r"stopped: .*at step (\d+), which is saved", log(record))
    ended(slurm, record)
    assert state(capfd, record) == ["COMPLETED", "1"], log(record)
    assert f"continuing from step {stopped}" in log(record)


@pytest.mark.full
def test_a_cancelled_job_stays_cancelled_until_it_is_resumed(slurm, capfd):
    """N20: it has saved; `job resume` goes on from there."""
    profile()
    words = [*LONG, "trainer.train_steps=3000", "trainer.summary_interval=100", "--model_dir=run"]
    record = submit(capfd, *words)
    reached(slurm, record, "step 100/3000")
    assert "was cancelled" in job(capfd, "cancel", record["name"])
    ended(slurm, record)
    reached(slurm, record, "exit code 143, and Slurm has signalled the job: it comes back only if Slurm says so")
    assert state(capfd, record) == ["CANCELLED", "0"], log(record)
    (stopped,) = re.findall(r"0: stopped: .*at step (\d+), which is saved", log(record))
    assert "was submitted to slurm" in job(capfd, "resume", record["name"])
    again = json.loads(Path("launches", record["name"], "launch.json").read_text())
    assert again["id"] != record["id"]
    ended(slurm, again)
    assert f"continuing from step {stopped}" in log(record)
    assert "finished at step 3000" in log(record)


@pytest.mark.full
def test_a_worker_that_is_killed_brings_the_job_back(slurm, capfd):
    """N20: the others have lost a peer (75); the job goes on from its checkpoint."""
    profile(max_restarts=1)
    words = [*LONG, "trainer.train_steps=1500", "trainer.summary_interval=100", "--model_dir=run"]
    record = submit(capfd, *words)
    reached(slurm, record, "step 100/1500")
    second = [pid for pid in slurm.left() if _variables(pid).get("SLURM_PROCID") == "1"]
    (victim,) = [pid for pid in second if "official_trainer" in _command(pid)]
    os.kill(victim, signal.SIGKILL)
    reached(slurm, record, "back to the queue, restart 1 of 1")
    ended(slurm, record)
    assert state(capfd, record) == ["COMPLETED", "1"], log(record)


def _variables(pid):
    words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def _command(pid):
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return words if "python" in words[0] else []


@pytest.mark.full
def test_a_job_whose_time_is_nearly_over_goes_on_in_another(slurm, capfd):
    """N20: it has saved before the limit."""
    profile(time_limit="1", signal_seconds=20)
    record = submit(capfd, *LONG, "trainer.train_steps=1000000", "trainer.summary_interval=1000", "--model_dir=run")
    reached(slurm, record, "back to the queue, restart 1 of 10")
    assert re.search(r"0: stopped: .*at step \d+, which is saved", log(record))
    job(capfd, "cancel", record["name"])


@pytest.mark.full
def test_a_node_that_fails_does_not_end_the_run(slurm, capfd):
    """N20: Slurm puts the job back; it goes on from its newest checkpoint."""
    profile()
    words = [*LONG, "trainer.train_steps=1500", "trainer.summary_interval=100", "trainer.checkpoint_interval=200"]
    record = submit(capfd, *words, "--model_dir=run")
    reached(slurm, record, "step 300/1500")
    try:
        slurm("scontrol", "update", "nodename=n2", "state=down", "reason=test")
        slurm.until(lambda: state(capfd, record)[1] == "1", "the job is back in the queue")
    finally:
        slurm("scontrol", "update", "nodename=n2", "state=resume")
    ended(slurm, record)
    assert state(capfd, record) == ["COMPLETED", "1"], log(record)
    assert re.search(r"continuing from step [2-9]\d\d in ", log(record)), log(record)


def sweep_pids(record):
    """Returns the process of each trial that runs, by its number."""
    found = {}
    for path in Path(record["model_dir"]).glob("trials/*/run/.lock.json"):
        with contextlib.suppress(FileNotFoundError):
            found[int(path.parent.parent.name)] = json.loads(path.read_text())["pid"]
    return found


GATED = """
import dataclasses
import itertools
import pathlib
import time
from experiments import digits
from official_trainer import register_config_factory, register_task_cls
from official_trainer.lazy import tf

calls = itertools.count()

def wait(image):
    while next(calls) > 60 and not pathlib.Path("{go}").exists():
        time.sleep(0.1)
    return image

def gate(image, label):
    return tf.ensure_shape(tf.numpy_function(wait, [image], tf.float32), image.shape), label

class GatedConfig(digits.DigitsConfig):
    pass

@register_task_cls(GatedConfig)
class GatedTask(digits.DigitsTask):
    def build_inputs(self, params, input_context=None):
        dataset = super().build_inputs(params, input_context)
        return dataset.map(gate) if params.is_training else dataset

@register_config_factory("gated")
def gated():
    base = digits.digits_mlp()
    fields = {each.name: getattr(base.task, each.name) for each in dataclasses.fields(base.task)}
    return base.replace(task=GatedConfig(**fields))
"""
"""The digits, whose 61st batch comes when there is a file `{go}`."""


@pytest.fixture
def database():
    """A real PostgreSQL, or None where there is none."""
    if not is_there():
        warnings.warn("NO STUDY OF A SWEEP ON SLURM IS WRITTEN HERE: there is no PostgreSQL", stacklevel=1)
        yield None
        return
    with postgresql() as found:
        yield found


def test_a_sweep_is_an_array_of_workers_that_share_it(slurm, capfd, database):
    """N21: on both nodes; a trial is killed and a worker preempted; each is trained once, to its end, in one study."""
    profile(nodes=1, workers=2)
    Path("experiments/gated.py").write_text(GATED.replace("{go}", str(Path("go").resolve())))
    words = ["sweep", "gated", "--space=task.model.mlp.dropout=float(0, 0.5)", "--trials=3", "--model_dir=sweep"]
    words += ["trainer.train_steps=200", "trainer.steps_per_loop=10", "trainer.summary_interval=10"]
    words += ["trainer.checkpoint_interval=20", "trainer.export.at_end=false"]
    words += [f"--storage={database.address}"] if database else []
    record = submit(capfd, *words)
    slurm.until(lambda: len(sweep_pids(record)) == 2, "two trials run")
    assert {each.split("_")[0] for each in slurm.jobs()} == {record["id"]} and len(slurm.jobs()) == 2
    killed, preempted = sweep_pids(record).items()
    rows = [Path(record["model_dir"], "trials", str(each), "run", "metrics.jsonl") for each, _ in (killed, preempted)]
    slurm.until(lambda: all(path.exists() and path.read_text().count("\n") > 2 for path in rows), "both have trained")
    os.kill(killed[1], signal.SIGKILL)
    task = next(name for name in ("0", "1") if f"trial {preempted[0]} starts" in log(record, f"slurm-{name}.out"))
    assert slurm("scontrol", "requeue", f"{record['id']}_{task}").returncode == 0
    Path("go").touch()
    ended(slurm, record)
    logs = job(capfd, "logs", record["name"])
    assert "==> slurm-1.out <==" in logs
    assert f"trial {killed[0]} was killed by SIGKILL (out of memory?); it continues in 1 s" in logs
    found = [json.loads(path.read_text()) for path in Path("sweep/trials").glob("*/trial.json")]
    assert sorted((each["number"], each["state"]) for each in found) == [(n, "complete") for n in range(3)], logs
    assert logs.count(" complete: accuracy ") == 3
    assert len(re.findall(r"^[0-2] +(?:best|done) ", logs, flags=re.MULTILINE)) == 2 * 3  # the tables of both
    for number in range(3):
        run = Path("sweep/trials", str(number), "run")
        steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert steps == sorted(steps) and steps[-1] == 200
    assert state(capfd, record)[0] == "COMPLETED"
    if database:
        database.expect_trials("sweep")
