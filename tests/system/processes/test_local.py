"""Jobs on this machine: real processes, real signals, real kills; what they do is scripted."""

import json
import os
import re
import signal
import time

import pytest

from official_trainer.distributed.environment import cluster_env
from tests.support.processes.jobs import Launched, is_alive
from tests.support.waiting import until

TWO = {"worker": 2}
SERVED = {"chief": 1, "worker": 2, "ps": 1}


def run(folder, counts, sources, **options):
    job = Launched(folder, counts, sources, **options)
    return job.wait(), job


# All is well


def test_lines_are_whole_and_have_a_name(tmp_path):
    """N20: written in pieces by three processes at once, on both streams; the last line has no end."""
    source = """
for i in range(300):
    stream = (sys.stdout, sys.stderr)[i % 2]
    print(f"line {i:03} of", end="", file=stream, flush=True)
    print(f" {NAME}", file=stream, flush=True)
print("end", end="")
"""
    code, job = run(tmp_path, {"worker": 3}, {"worker": source}, log_dir=str(tmp_path / "logs"))
    assert code == 0, job.err
    lines = job.out.splitlines()
    for index in range(3):
        own = [line.removeprefix(f"[worker {index}] ") for line in lines if line.startswith(f"[worker {index}]")]
        expected = [f"line {i:03} of worker {index}" for i in range(300)] + ["end"]
        assert own == expected
        assert (tmp_path / "logs" / f"worker-{index}.log").read_text() == "\n".join(expected)
    started = [line for line in lines if line.startswith("[launch]")]
    assert len(started) == 1 and len(lines) == 904
    assert re.fullmatch(
        r"\[launch\] +started worker 0 \(pid \d+\), worker 1 \(pid \d+\), worker 2 \(pid \d+\)", started[0]
    )


def test_each_process_is_told_who_it_is(tmp_path):
    """By TF_CONFIG, as `cluster_env` reads it; ports are all different, and no proxy is asked for loopback."""
    source = (
        "print(json.dumps([dict(os.environ)['TF_CONFIG'], os.environ['no_proxy'], sys.modules['__main__'].__name__]))"
    )
    sources = dict.fromkeys(("worker", "ps", "evaluator"), source + "; touch(NAME)")
    sources["chief"] = source + "; [wait(name) for name in ('worker 0', 'worker 1', 'ps 0')]"
    code, job = run(tmp_path, {**SERVED, "evaluator": 1}, sources)
    assert code == 0, job.err
    said = {name: json.loads(text) for name, text in re.findall(r"^\[(.*?)\] +(\[.*)$", job.out, flags=re.MULTILINE)}
    assert set(said) == {"chief", "worker 0", "worker 1", "ps 0", "evaluator"}
    found = {name: cluster_env({"TF_CONFIG": config}) for name, (config, *_) in said.items()}
    assert {name: cluster.name for name, cluster in found.items()} == {name: name for name in said}
    addresses = [address for hosts in found["chief"].addresses.values() for address in hosts]
    assert len(set(addresses)) == 4
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    assert {(proxy.split(",")[-1], main) for _, proxy, main in said.values()} == {("127.0.0.1", "__main__")}


def test_processes_are_forked_from_one_that_has_imported_for_them(tmp_path):
    """What is preloaded is imported once, elsewhere; what is random still differs."""
    source = """
import tests.support.processes.preloaded as preloaded, numpy
print("imported here:", preloaded.PID == os.getpid())
print("number:", numpy.random.rand())
"""
    code, job = run(tmp_path, TWO, {"worker": source}, preload=["json", "tests.support.processes.preloaded"])
    assert code == 0, job.err
    assert job.out.count("imported here: False") == 2
    assert len(set(re.findall(r"number: (\S+)", job.out))) == 2


def test_servers_are_ended_when_the_chief_is_done(tmp_path):
    """They would serve for ever; that is no failure, and an evaluator is left to finish."""
    names = ["chief", "ps 0", "worker 0", "worker 1"]
    waits = "; ".join(f"wait('pid of {name}')" for name in [*names, "evaluator"])
    sources = {"chief": waits, "worker": "forever()", "ps": "forever()", "evaluator": "wait('go')"}
    job = Launched(tmp_path, {**SERVED, "evaluator": 1}, sources)
    job.until(*(f"pid of {name}" for name in [*names, "evaluator"]))
    until(lambda: not any(is_alive(int((tmp_path / f"pid of {name}").read_text())) for name in names))
    (tmp_path / "go").touch()
    assert (job.wait(), job.err) == (0, "")
    assert "training is done; the evaluator ends by itself" in job.out
    assert "was killed by" not in job.out and "waiting up to" not in job.out


# One fails


def test_the_first_failure_is_the_exit_code_and_the_message(tmp_path):
    """The others find out by themselves, and end with 75."""
    sources = {
        "worker 0": "wait_for_end('worker 1'); print('error: peers are lost'); sys.exit(75)",
        "worker 1": "print('error: shard 7 is damaged'); sys.exit(3)",
    }
    code, job = run(tmp_path, TWO, sources)
    assert code == 3
    assert job.err == "error: worker 1 ended with exit code 3 (data); its last lines:\n    error: shard 7 is damaged\n"
    assert "[launch]   worker 1 ended with exit code 3 (data); waiting up to 60 s for worker 0 to end" in job.out
    assert "[launch]   worker 0 ended with exit code 75 (retry)" in job.out


def test_who_does_not_find_out_is_told(tmp_path):
    """SIGTERM, then SIGKILL."""
    sources = {
        "worker 0": "on_term(lambda: (print('told'), sys.exit(143))); touch('0'); forever()",
        "worker 1": "on_term(lambda: print('deaf')); touch('1'); forever()",
        "worker 2": "wait('0'); wait('1'); sys.exit(5)",
    }
    code, job = run(tmp_path, {"worker": 3}, sources, peers_seconds=0.1, grace_seconds=1)
    assert code == 5
    assert "[worker 0] told" in job.out and "[worker 1] deaf" in job.out
    assert "[launch]   killing worker 1\n" in job.out
    assert job.err.startswith("error: worker 2 ended with exit code 5 (stalled)")


def test_what_a_process_leaves_behind_ends_with_it(tmp_path):
    """A loader that it has started, say, which would keep the launcher waiting for the end of its output."""
    source = "import subprocess; touch('pid of its child', str(subprocess.Popen(['sleep', '1000']).pid))"
    code, job = run(tmp_path, {"worker": 1}, {"worker": source})
    assert code == 0
    assert len(job.pids()) == 2


# The launcher is asked to stop


@pytest.fixture(autouse=True)
def hang_up():
    """SIGHUP is not ignored, as it would be under `nohup pytest`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on_once(tmp_path, number):
    """All save, and the job is preempted as one process would be."""
    source = """
count = 0
def term():
    global count
    count += 1
on_term(term)
touch(f"ready {NAME}")
while not count:
    signal.pause()
touch(f"saving {NAME}")
wait("go")
print("saved after", count)
sys.exit(143)
"""
    job = Launched(tmp_path, {**TWO, "evaluator": 1}, {"worker": source, "evaluator": source}, supervise=True)
    job.until("ready worker 0", "ready worker 1", "ready evaluator")
    os.killpg(job.process.pid, number)
    job.until("saving worker 0", "saving worker 1", "saving evaluator")
    (tmp_path / "go").touch()
    assert job.wait() == 143
    assert job.out.count("saved after 1") == 3
    assert job.err == "stopped: all processes have ended; the same command continues the run\n"


def test_a_job_under_nohup_outlives_its_terminal(tmp_path):
    """N5: SIGHUP is ignored before the launcher starts, so it stays ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    job = Launched(tmp_path, TWO, {"worker": "touch(NAME); wait('go')"})
    job.until("worker 0", "worker 1")
    os.killpg(job.process.pid, signal.SIGHUP)
    (tmp_path / "go").touch()
    assert job.wait() == 0, job.err


def test_sighup_again_does_not_kill(tmp_path):
    """N5: a terminal sends it, and its shell too; the processes save."""
    source = "on_term(lambda: touch(f'told {NAME}')); touch(NAME); wait('go'); sys.exit(143)"
    job = Launched(tmp_path, TWO, {"worker": source})
    job.until("worker 0", "worker 1")
    os.kill(job.process.pid, signal.SIGHUP)
    job.until("told worker 0", "told worker 1")
    time.sleep(0.6)  # longer than the time in which a second signal counts as the first one
    os.kill(job.process.pid, signal.SIGHUP)
    (tmp_path / "go").touch()
    assert job.wait() == 143
    assert "a second signal" not in job.out


def test_the_chief_saves_before_its_servers_are_ended(tmp_path):
    told = "on_term(lambda: (print('late' if has('saved') else 'early'), sys.exit(0))); touch(NAME); forever()"
    sources = {
        "chief": "on_term(lambda: (touch('saved'), sys.exit(143))); touch('ready'); forever()",
        **dict.fromkeys(("worker", "ps"), told),
    }
    job = Launched(tmp_path, SERVED, sources)
    job.until("ready", "worker 0", "worker 1", "ps 0")
    job.process.terminate()
    assert job.wait() == 143
    assert (job.out.count("late"), job.out.count("early")) == (3, 0)


def test_a_second_signal_kills(tmp_path):
    job = Launched(tmp_path, TWO, {"worker": "on_term(lambda: touch(f'told {NAME}')); touch(NAME); forever()"})
    job.until("worker 0", "worker 1")
    job.process.terminate()
    job.until("told worker 0", "told worker 1")
    until(lambda: job.process.poll() is not None or job.process.terminate())
    assert job.wait() == 75
    assert "did not end in time and was killed" in job.err


# The launcher dies

_WITH_CHILD = """
import subprocess
on_term(lambda: None)
touch(f'pid of child of {NAME}', str(subprocess.Popen(['sleep', '1000']).pid))
forever()
"""
_ALL = ("pid of child of worker 0", "pid of child of worker 1")


def test_nothing_is_left_when_the_launcher_is_killed(tmp_path):
    """Nor what its processes have started themselves."""
    job = Launched(tmp_path, TWO, {"worker": _WITH_CHILD})
    job.until(*_ALL)
    pids = [*job.pids(), job.fork_server()]
    assert len(pids) == 5
    job.process.kill()
    until(lambda: not any(is_alive(pid) for pid in pids))
    job.wait()


def test_no_process_of_the_job_is_left_when_fork_server_and_launcher_are_killed_at_once(tmp_path):
    """N20: each of them waits for the launcher's end itself."""
    job = Launched(tmp_path, TWO, {"worker": _WITH_CHILD})
    job.until(*_ALL)
    pids = job.pids()
    assert len(pids) == 4
    os.kill(job.fork_server(), signal.SIGKILL)
    job.process.kill()
    until(lambda: not any(is_alive(pid) for pid in pids))
    job.wait()


@pytest.mark.parametrize("supervise", [False, True])
def test_a_fork_server_that_is_killed_ends_its_processes(tmp_path, supervise):
    """N20, N26: with 75, so that a job under `supervise` starts again, from a new one."""
    job = Launched(tmp_path, TWO, {"worker": "lives() == 1 and forever()"}, supervise=supervise)
    job.until("worker 0 1", "worker 1 1")
    os.kill(job.fork_server(), signal.SIGKILL)
    assert job.wait() == (0 if supervise else 75), job.err
    assert (tmp_path / "worker 1 2").exists() == supervise


def test_a_fork_server_that_does_not_start_is_said(tmp_path):
    """N26: its error is above; the launcher may be started again."""
    code, job = run(tmp_path, TWO, {"worker": "touch(NAME)"}, preload=["tests.support.processes.refuses"])
    assert code == 75
    assert job.err.count("ValueError: no") == 1  # it is not tried again
    assert "error: the process that forks others has ended; its error is above, or it was killed" in job.err


def test_a_job_goes_on_when_nothing_reads_its_output(tmp_path):
    """N5: `official-trainer launch … | head -1`; the log files are complete."""
    source = "print('line', flush=True)\ntouch(NAME)\nwhile not has('go'): print('line', flush=True)\nprint('end')"
    job = Launched(tmp_path, TWO, {"worker": source}, log_dir=str(tmp_path / "logs"))
    job.until("worker 0", "worker 1")
    job.process.stdout.close()
    (tmp_path / "go").touch()
    until(lambda: job.process.poll() is not None)
    assert job.process.returncode == 0, job.process.stderr.read()
    assert not any(is_alive(pid) for pid in job.pids())
    assert all((tmp_path / "logs" / f"worker-{i}.log").read_text().endswith("line\nend\n") for i in (0, 1))


# Restarts


@pytest.mark.parametrize("code", [143, -9])
def test_a_job_that_may_be_started_again_is(tmp_path, code):
    """All of it, under `supervise`."""
    end = "os.kill(os.getpid(), signal.SIGKILL)" if code < 0 else f"sys.exit({code})"
    sources = {"worker 0": "sys.exit(75) if lives() == 1 else None", "worker 1": f"if lives() == 1: {end}"}
    code, job = run(tmp_path, TWO, sources, supervise=True)
    assert code == 0, job.out
    assert (tmp_path / "worker 0 2").exists() and not (tmp_path / "worker 0 3").exists()
    assert "restart 1, from the start, at once" in job.out


def test_what_would_fail_again_is_not_started_again(tmp_path):
    sources = {"worker 0": "lives(); sys.exit(75)", "worker 1": "lives(); sys.exit(5)"}
    code, _ = run(tmp_path, TWO, sources, supervise=True)
    assert code == 5
    assert not (tmp_path / "worker 1 2").exists()


def test_a_job_that_crashes_again_and_again_is_given_up(tmp_path):
    """Restarts count from the last new checkpoint; there is one in the third life, and none after it."""
    source = "life = lives()\nif life == 3: touch('step-70')\nsys.exit(75)"
    code, job = run(tmp_path, {"worker": 1}, {"worker": source}, supervise=True)
    assert code == 1
    assert "after 5 restarts the newest checkpoint is still that of step 70: it crashes again and again" in job.err
    assert (tmp_path / "worker 0 8").exists() and not (tmp_path / "worker 0 9").exists()
    assert "restart 3, from step 70" in job.out


def test_a_launcher_that_waits_to_start_again_can_be_stopped(tmp_path):
    job = Launched(tmp_path, {"worker": 1}, {"worker": "lives(); sys.exit(75)"}, supervise=True, first_seconds=60)
    job.until("worker 0 1")
    until(lambda: not is_alive(job.pids()[0]))
    while "restart 1, from the start, in 60 s" not in job.process.stdout.readline():
        assert job.process.poll() is None
    job.process.terminate()
    assert job.wait() == 75
    assert "not started again: SIGTERM" in job.err


def test_a_worker_under_a_chief_is_started_again_alone(tmp_path):
    """On its port, while the others go on."""
    sources = {
        "chief": "lives(); wait('worker 1 2')",
        "worker 0": "lives(); forever()",
        "worker 1": "os.kill(os.getpid(), signal.SIGKILL) if lives() == 1 else forever()",
        "ps": "lives(); forever()",
    }
    code, job = run(tmp_path, SERVED, sources, supervise=True)
    assert code == 0, job.err
    assert "worker 1 was killed by SIGKILL" in job.out and "the others go on; it starts again in 0 s" in job.out
    assert (tmp_path / "worker 1 1").read_text() == (tmp_path / "worker 1 2").read_text()
    assert not [name for name in ("chief 2", "worker 0 2", "worker 1 3", "ps 0 2") if (tmp_path / name).exists()]


def test_a_dead_parameter_server_ends_the_round(tmp_path):
    """What it held is gone: chief, workers and servers start again from the checkpoint."""
    sources = {
        "chief": "sys.exit(75) if lives() == 1 else None",
        "worker": "forever()",
        "ps": "os.kill(os.getpid(), signal.SIGKILL) if lives() == 1 else forever()",
    }
    code, job = run(tmp_path, SERVED, sources, supervise=True)
    assert code == 0, job.err
    assert (tmp_path / "chief 2").exists()


# Pieces
