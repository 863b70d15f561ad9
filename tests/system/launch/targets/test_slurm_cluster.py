"""Jobs on a real Slurm of two nodes on loopback: they train, are preempted, go on, are cancelled, and sweep."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from official_trainer import cli
from official_trainer.sweeps import results
from tests.support import repository, runs

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
    return {"name": name, **json.loads(Path("launches", name, "launch.json").read_text())}


def job(capfd, action, record):
    """Runs `job`, and returns what it prints."""
    capfd.readouterr()
    assert cli.main(["job", action, record["name"]]) == 0
    return capfd.readouterr().out


def log(record, name="slurm.out"):
    path = Path("launches", record["name"], name)
    return path.read_text() if path.exists() else ""


def state(capfd, record):
    """Returns state and number of restarts, as `job status` says them."""
    return job(capfd, "status", record).splitlines()[-1].split()[1:3]


def ended(slurm, record):
    slurm.until(lambda: not [name for name in slurm.jobs() if name.split("_")[0] == record["id"]], "the job has ended")


def reached(slurm, record, text):
    slurm.until(lambda: text in log(record), f"{text!r} is in {log(record)}")


def test_two_nodes_train_one_run_and_share_its_predictions(slurm, capfd):
    """N20: submitted by one command each; both nodes take part, the names of files are whatever they are."""
    profile(environ={"A": "b c"}, srun=["--cpu-bind=none"])
    model_dir = Path('a run\'s $(touch oops) `touch oops`; "x"').resolve()
    record = submit(capfd, "digits_mlp", SMOKE, "--mode=train", f"--model_dir={model_dir}")
    assert slurm.jobs()[record["id"]] in ("PENDING", "CONFIGURING", "RUNNING")
    ended(slurm, record)
    assert state(capfd, record) == ["COMPLETED", "0"], log(record)
    said = job(capfd, "logs", record)
    assert "on 2 CPUs of 2 workers, mirrored" in said and "0: finished at step 20" in said
    assert json.loads((model_dir / "run.json").read_text())["experiment"] == "digits_mlp"
    assert sorted(os.listdir(Path("launches", record["name"]))) == ["job.sbatch", "launch.json", "slurm.out"]
    words = ["predict", "digits_mlp", SMOKE, f"--model_dir={model_dir}", "--format=jsonl", "--shard_size=64"]
    predicting = submit(capfd, *words, "task.validation_data.global_batch_size=32")
    assert predicting["name"] != record["name"] and predicting["model_dir"] == record["model_dir"]
    ended(slurm, predicting)
    assert state(capfd, predicting) == ["COMPLETED", "0"], log(predicting)
    rows = [json.loads(line) for path in (model_dir / "predictions").glob("*.jsonl") for line in path.open()]
    assert len(rows) == 360
    assert re.findall(r"(?m)^([01]): .*predictions of ckpt-20, ", log(predicting)) in (["0", "1"], ["1", "0"])
    assert not list(Path().rglob("oops"))


def test_each_process_has_a_node_a_role_and_gpus_of_its_own(slurm, capfd, tmp_path):
    """N20: by what Slurm says it may see, and by `TF_CONFIG`; the devices are stand-ins."""
    says = tmp_path / "says"
    says.write_text('#!/bin/sh\necho "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $TF_CONFIG"\n')
    says.chmod(0o755)
    profile(workers=2, ps=1, tasks_per_node=2, resources={"gpus": 1}, python=str(says))
    record = submit(capfd, "digits_mlp", "--model_dir=run")
    ended(slurm, record)
    said = re.findall(r"^\d: (n\d) (\d) (.*)$", job(capfd, "logs", record), flags=re.MULTILINE)
    first = 12000 + int(record["id"]) % 320 * 64
    addresses = [f"127.0.0.1:{first + number}" for number in range(4)]
    cluster = {"chief": addresses[:1], "worker": addresses[1:3], "ps": addresses[3:]}
    places = {(node, gpu): json.loads(text) for node, gpu, text in said}
    assert [places[place] for place in (("n1", "0"), ("n1", "1"), ("n2", "0"), ("n2", "1"))] == [
        {"cluster": cluster, "task": {"type": role, "index": index}}
        for role, index in (("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0))
    ]
    profile(workers=2, resources={"gpus": 2}, python=str(says))
    record = submit(capfd, "digits_mlp", "--model_dir=other")
    ended(slurm, record)
    assert sorted(re.findall(r"(\d): (n\d [\d,]+) {", log(record))) == [("0", "n1 0,1"), ("1", "n2 0,1")]


def test_two_jobs_of_one_run_directory_follow_each_other(slurm, capfd, tmp_path):
    """N20: what is requeued does not wait for itself, nor for the second; `job cancel` ends one that waits."""
    (tmp_path / "waits").write_text(f"#!/bin/sh\nuntil [ -e {tmp_path}/go ]; do sleep 0.1; done\n")
    (tmp_path / "waits").chmod(0o755)
    profile(nodes=1, workers=1, python=str(tmp_path / "waits"))
    first = submit(capfd, "digits_mlp", "--model_dir=run")
    slurm.until(lambda: slurm.jobs()[first["id"]] == "RUNNING", "the first job runs")
    second = submit(capfd, "digits_mlp", "--model_dir=run")
    assert (second["name"], second["id"] != first["id"]) == (first["name"], True)
    reason = ("squeue", "--noheader", "--format=%T %r", f"--jobs={second['id']}")
    slurm.until(lambda: slurm(*reason).stdout == "PENDING Dependency\n", "the second waits, beside a node that is free")
    assert slurm("scontrol", "requeue", first["id"]).returncode == 0
    slurm.until(lambda: slurm.jobs()[first["id"]] == "PENDING", "the first is back in the queue")
    slurm.until(lambda: slurm.jobs()[first["id"]] == "RUNNING", "the first runs again")
    assert slurm.jobs()[second["id"]] == "PENDING"
    job(capfd, "cancel", second)
    ended(slurm, second)
    Path("go").touch()
    ended(slurm, first)


@pytest.mark.full
def test_a_chief_workers_servers_and_an_evaluator(slurm, capfd):
    """N20: a step of srun for each role; all end when the chief has, and the evaluator after its last checkpoint."""
    profile(workers=1, ps=1, evaluator=True)
    record = submit(capfd, "digits_mlp", SMOKE, "--model_dir=run")
    ended(slurm, record)
    assert state(capfd, record) == ["COMPLETED", "0"], log(record)
    assert "strategy parameter_server: 1 workers, 1 ps" in log(record)
    assert "finished at step 20" in log(record)
    assert "2: ps 0 serves at" in log(record) and "3: validation @ 20" in log(record)


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


@pytest.mark.full
def test_a_requeued_job_runs_the_commit_that_was_submitted(slurm, capfd, tmp_path):
    """N33: though the workspace was edited; then other code is a change, which has to be allowed."""
    repository.make(tmp_path)
    Path(".gitignore").write_text("launches\nrun\n")
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
    job(capfd, "cancel", record)
    ended(slurm, record)
    run = json.loads(Path("run/run.json").read_text())
    assert run["git_revision"] == record["commit"]
    assert "version 1" in repository.git(
        tmp_path, "show", f"refs/official-trainer/{record['name']}:experiments/marked.py"
    )
    capfd.readouterr()
    assert cli.main(["launch", "slurm", "--profile=launch/two.yaml", "--submit", "--", *words]) == 2
    refusal = capfd.readouterr().err
    assert "the code is not the one that ckpt-" in refusal and "changed: experiments/marked.py" in refusal
    record = submit(capfd, *words, "--allow_config_change")
    reached(slurm, record, "this is version 2 of the code")
    job(capfd, "cancel", record)


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
def test_a_cancelled_job_stays_cancelled_until_it_is_submitted_again(slurm, capfd):
    """N20: it has saved, and goes on from there."""
    profile()
    words = [*LONG, "trainer.train_steps=3000", "trainer.summary_interval=100", "--model_dir=run"]
    record = submit(capfd, *words)
    reached(slurm, record, "step 100/3000")
    job(capfd, "cancel", record)
    ended(slurm, record)
    reached(slurm, record, "exit code 143, and Slurm has signalled the job: it comes back only if Slurm says so")
    assert state(capfd, record) == ["CANCELLED", "0"], log(record)
    (stopped,) = re.findall(r"0: stopped: .*at step (\d+), which is saved", log(record))
    again = submit(capfd, *words)
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
    job(capfd, "cancel", record)


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


def test_a_sweep_is_an_array_of_workers_that_share_it(slurm, capfd):
    """N21: on both nodes; a worker is put back into the queue; each trial is trained once, to its end."""
    profile(nodes=1, workers=2)
    words = ["sweep", "digits_mlp", "--space=task.model.mlp.dropout=float(0, 0.5)", "--trials=2", "--model_dir=sweep"]
    words += ["trainer.train_steps=200", "trainer.steps_per_loop=10", "trainer.summary_interval=10"]
    words += ["trainer.checkpoint_interval=20", "trainer.export.at_end=false"]
    record = submit(capfd, *words)
    rows = Path(record["model_dir"]).glob
    slurm.until(lambda: len(list(rows("trials/*/run/metrics.jsonl"))) >= 2, "two trials train")
    assert {name.split("_")[0] for name in slurm.jobs()} == {record["id"]}
    assert slurm("scontrol", "requeue", f"{record['id']}_0").returncode == 0
    ended(slurm, record)
    logs = job(capfd, "logs", record)
    assert "==> " in logs and "slurm-1.out <==" in logs
    found = results.summary("sweep")["trials"]
    assert [(trial["number"], trial["state"]) for trial in found] == [(n, "complete") for n in range(2)], logs
    assert logs.count(" complete: accuracy ") == 2
    for number in range(2):
        path = Path("sweep/trials", str(number), "run", "metrics.jsonl")
        steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
        assert steps == sorted(steps) and steps[-1] == 200, logs
    assert state(capfd, record)[0] == "COMPLETED"
