"""Who takes part in a run, from what schedulers leave in the environment: tables, and every refusal."""

import dataclasses
import json
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.distributed import environment
from official_trainer.distributed.cluster import Cluster, ClusterError
from official_trainer.errors import ExitCode


@dataclasses.dataclass
class Runtime:
    worker_hosts: str | None = None
    task_index: int | None = None


def no_slurm(*words):
    raise OSError("scontrol: command not found")


def cluster_env(environ, runtime=None, *, scontrol=no_slurm):
    """Reads the cluster on a machine whose `scontrol` is this function."""
    with mock.patch.object(environment, "run_scontrol", scontrol):
        return environment.cluster_env(environ, runtime)


def tf_config(addresses=None, task=None, **more):
    config = {"cluster": addresses, "task": task, **more}
    return {"TF_CONFIG": json.dumps({key: value for key, value in config.items() if value is not None})}


A, B, C, D = (f"10.0.0.{i}:2222" for i in range(1, 5))
TWO = {"worker": [A, B]}


def worker(index):
    return {"type": "worker", "index": index}


# TF_CONFIG


@pytest.mark.parametrize(
    ("addresses", "task", "name", "is_chief"),
    [
        (TWO, worker(0), "worker 0", True),
        (TWO, worker(1), "worker 1", False),
        ({"chief": [C], "worker": [A, B]}, {"type": "chief", "index": 0}, "chief", True),
        ({"chief": [C], "worker": [A, B]}, worker(0), "worker 0", False),
        ({"chief": [C], "worker": [A], "ps": [D]}, {"type": "ps", "index": 0}, "ps 0", False),
        ({"chief": [C], "worker": [A], "ps": []}, {"type": "chief"}, "chief", True),
        ({"worker": ["[fd00::1]:2222", "node-7.local:80"]}, worker(1), "worker 1", False),
        (TWO, {"type": "evaluator", "index": 0}, "evaluator", False),
        (None, {"type": "evaluator", "index": 0}, "evaluator", False),
        ({"worker": [A], "evaluator": [B]}, {"type": "evaluator", "index": 0}, "evaluator", False),
    ],
)
def test_tf_config_says_who_this_is(addresses, task, name, is_chief):
    found = cluster_env(tf_config(addresses, task))
    assert (found.name, found.is_chief, found.source) == (name, is_chief, "TF_CONFIG")
    assert found.addresses == {role: tuple(hosts) for role, hosts in (addresses or {}).items() if hosts}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TF_CONFIG": ""},
        {"TF_CONFIG": "  "},
        {"TF_CONFIG": "{}"},
        tf_config({}, {}, environment="cloud"),
        tf_config({"worker": [A]}, worker(0)),
        tf_config({"chief": [A], "evaluator": [B]}, {"type": "chief", "index": 0}),
    ],
)
def test_a_process_alone_is_no_cluster(environ):
    assert cluster_env(environ, Runtime(), scontrol=no_slurm) is None


def test_what_platforms_add_is_fine():
    """Vertex AI and TFJob have keys of their own."""
    found = cluster_env(tf_config(TWO, {**worker(1), "trial": "3"}, environment="cloud", rpc_layer="grpc", job="{}"))
    assert found.index == 1


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"TF_CONFIG": "{cluster"}, r"TF_CONFIG is '{cluster', which is not JSON .*unset it to train in one process"),
        ({"TF_CONFIG": "[1]"}, r"TF_CONFIG is \[1\]; expected an object, as in"),
        (tf_config([A], worker(0)), r"TF_CONFIG.cluster is .*; expected an object"),
        (tf_config({"wroker": [A, B]}, worker(0)), r'role in cluster is "wroker"; .*did you mean worker\?'),
        (tf_config({"master": [A], "worker": [B]}, worker(0)), r"did you mean chief\?"),
        (tf_config({"worker": A}, worker(0)), r"cluster.worker is .*; expected a list of host:port"),
        (tf_config(TWO), r"does not name this process: task is missing; expected"),
        (tf_config(TWO, [1]), r"TF_CONFIG.task is \[1\]; expected an object"),
        (tf_config(TWO, {"type": "Worker", "index": 0}), r'task.type is "Worker"; expected one of chief, worker, ps, '),
        (tf_config(TWO, {"index": 0}), r"task.type is null; expected one of"),
        (tf_config(TWO, worker("1")), r'task.index is "1"; expected a number from 0, unquoted'),
        (tf_config(TWO, worker(-1)), r"task.index is -1; expected a number from 0"),
        (tf_config(TWO, worker(True)), r"task.index is true; expected a number"),
        (tf_config(TWO, worker(2)), r"the index of this worker is 2, but there is 0 to 1"),
        (tf_config({"worker": [A]}, worker(1)), r"index of this worker is 1, but there is 0 only"),
        (tf_config(TWO, {"type": "ps", "index": 0}), r"index of this ps is 0, but there is no ps;"),
        (
            tf_config({"worker": [A, "host"]}, worker(0)),
            r"worker\[1\] is 'host', which has no port; expected host:port",
        ),
        (tf_config({"worker": [A, "fd00::1:22"]}, worker(0)), r"expected .* or \[fd00::1\]:2222"),
        (tf_config({"worker": [A, "host:x"]}, worker(0)), r"'x' is no port from 1 to 65535"),
        (tf_config({"worker": [A, "host:0"]}, worker(0)), r"'0' is no port from 1 to 65535"),
        (tf_config({"worker": [A, "host:70000"]}, worker(0)), r"'70000' is no port"),
        (tf_config({"worker": [A, "a b:22"]}, worker(0)), r"'a b' is no host name"),
        (tf_config({"worker": [A, 7]}, worker(0)), r"worker\[1\] is 7; expected host:port"),
        (tf_config({"worker": [A, B, A]}, worker(0)), r"10.0.0.1:2222 is the address of both worker 0 and worker 2"),
        (tf_config({"worker": [A], "chief": [A]}, worker(0)), r"address of both chief and worker 0; each .* its own"),
        (tf_config({"chief": [A, B], "worker": [C]}, worker(0)), r"there are 2 chiefs: .*; keep one"),
        (tf_config({"worker": [A, B], "ps": [C]}, worker(0)), r"no chief that coordinates them; add one"),
        (tf_config({"chief": [A], "ps": [C]}, {"type": "chief"}), r"no workers that compute; add at least one"),
    ],
)
def test_a_malformed_tf_config_is_refused(environ, said):
    """Each message has the variable, the value, what is allowed or the fix."""
    with pytest.raises(ClusterError, match=said) as raised:
        cluster_env(environ)
    assert raised.value.exit_code == ExitCode.CONFIG
    assert isinstance(raised.value, ValueError)
    assert str(raised.value).startswith("TF_CONFIG")


_HOSTS = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,3})?|\[fd00::[1-9]\]", fullmatch=True)
_ADDRESSES = st.builds("{}:{}".format, _HOSTS, st.integers(1, 65535))


@st.composite
def clusters(draw):
    addresses = iter(draw(st.lists(_ADDRESSES, min_size=9, max_size=9, unique=True)))
    counts = {"chief": draw(st.integers(0, 1)), "worker": draw(st.integers(2, 4))}
    counts |= {"ps": draw(st.integers(0, 3)) if counts["chief"] else 0}
    found = {role: tuple(next(addresses) for _ in range(count)) for role, count in counts.items() if count}
    role = draw(st.sampled_from([*found, "evaluator"]))
    index = 0 if role == "evaluator" else draw(st.integers(0, len(found[role]) - 1))
    return Cluster(addresses=found, role=role, index=index, source="TF_CONFIG")


@settings(max_examples=40)
@given(clusters())
def test_what_is_written_is_read(found):
    """N20: any cluster, as TF_CONFIG and back, is the same."""
    assert cluster_env({"TF_CONFIG": json.dumps(found.tf_config())}) == found


# Slurm


def slurm(rank=0, **changes):
    environ = {
        "SLURM_JOB_ID": "1000",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": "3",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NODELIST": "n[2,10]",
        "SLURM_STEP_TASKS_PER_NODE": "2,1",
    }
    return {name: value for name, value in {**environ, **changes}.items() if value is not None}


def scontrol(*words):
    if words == ("show", "hostnames", "n[2,10]"):
        return "n2\nn10\n"
    assert words == ("-o", "show", "node", "n2,n10")
    return "NodeName=n10 Arch=x86_64 NodeAddr=10.0.0.10 OS=Linux #1\nNodeName=n2 NodeAddr=10.0.0.2 State=IDLE\n"


def test_slurm_in_the_order_of_its_tasks():
    """Node n2 comes before n10; tasks of a node have neighbouring ports; rank is SLURM_PROCID."""
    found = cluster_env(slurm(2, SLURM_NODEID="1"), scontrol=scontrol)
    hosts, ports = zip(*(address.rsplit(":", 1) for address in found.addresses["worker"]), strict=True)
    assert hosts == ("10.0.0.2", "10.0.0.2", "10.0.0.10")
    assert int(ports[1]) == int(ports[0]) + 1 and ports[2] == ports[0]
    assert (found.name, found.source) == ("worker 2", "Slurm")
    assert all(cluster_env(slurm(rank), scontrol=scontrol).addresses == found.addresses for rank in range(3))


def test_slurm_deals_tasks_in_turn_when_told_to():
    found = cluster_env(slurm(SLURM_DISTRIBUTION="cyclic"), scontrol=scontrol)
    hosts = [address.rsplit(":", 1)[0] for address in found.addresses["worker"]]
    assert hosts == ["10.0.0.2", "10.0.0.10", "10.0.0.2"]


def test_slurm_ports_of_two_jobs_on_a_node_differ():
    """So do those of two steps of one job; all stay below those that clients are given."""
    seen = []
    for job in range(1000, 1100):
        for step in "01":
            found = cluster_env(slurm(SLURM_JOB_ID=str(job), SLURM_STEP_ID=step), scontrol=scontrol)
            seen += {int(address.rsplit(":", 1)[1]) for address in found.addresses["worker"]}
    assert len(set(seen)) == len(seen)
    assert max(seen) < 32768


def test_slurm_host_names_where_node_addresses_are_not_to_be_had():
    def names_only(*words):
        return scontrol(*words) if words[0] == "show" else no_slurm()

    found = cluster_env(slurm(), scontrol=names_only)
    assert [address.split(":")[0] for address in found.addresses["worker"]] == ["n2", "n2", "n10"]


@pytest.mark.parametrize(
    "environ",
    [
        slurm(SLURM_STEP_ID=None),  # the shell of a batch job, and of salloc
        slurm(SLURM_STEP_NUM_TASKS="1"),
        {"SLURM_JOB_ID": "7"},
    ],
)
def test_slurm_without_a_step_of_several_tasks(environ):
    assert cluster_env(environ, scontrol=no_slurm) is None


def test_slurm_nodes_that_share_an_address():
    """As those of a test on one machine: ports differ all the same."""

    def one_machine(*words):
        return scontrol(*words).replace("10.0.0.10", "127.0.0.1").replace("10.0.0.2", "127.0.0.1")

    found = cluster_env(slurm(), scontrol=one_machine).addresses["worker"]
    assert len(set(found)) == 3 and all(address.startswith("127.0.0.1:") for address in found)


def slurm_role(role="worker", rank=0, **changes):
    ours = {"OFFICIAL_TRAINER_HOSTS": "chief=n2;worker=n2,n10;ps=n10", "OFFICIAL_TRAINER_ROLE": role}
    return slurm(rank, **{**ours, "SLURM_STEP_NUM_TASKS": "1", **changes})


def test_slurm_with_a_step_for_each_role():
    """N20: in all steps the same cluster; ports follow from the job, not from the step."""
    found = [
        cluster_env(slurm_role(role, rank, SLURM_STEP_ID=str(step)), scontrol=scontrol)
        for step, (role, rank) in enumerate([("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)])
    ]
    assert [each.name for each in found] == ["chief", "worker 0", "worker 1", "ps 0"]
    port = int(found[0].addresses["chief"][0].partition(":")[2])
    assert all(
        each.addresses
        == {
            "chief": (f"10.0.0.2:{port}",),
            "worker": (f"10.0.0.2:{port + 1}", f"10.0.0.10:{port}"),
            "ps": (f"10.0.0.10:{port + 1}",),
        }
        for each in found
    )
    alone = slurm_role(OFFICIAL_TRAINER_HOSTS="worker=n2")
    assert cluster_env(alone, scontrol=no_slurm) is None


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (slurm_role(SLURM_PROCID="x"), r"SLURM_PROCID='x': expected a number from 0; srun sets it"),
        (slurm_role(OFFICIAL_TRAINER_ROLE=None), r"OFFICIAL_TRAINER_ROLE is not set"),
        (slurm_role("wrker"), r'OFFICIAL_TRAINER_ROLE is "wrker"; .*did you mean worker\?'),
        (slurm_role("worker", 2), r"Slurm: the index of this worker is 2, but there is 0 to 1"),
        (slurm_role("evaluator", 1), r"the index of this evaluator is 1, but there is 0 only"),
        (slurm_role(SLURMD_NODENAME="n10"), r"worker 0 belongs on n2, and srun started it on n10; .*launch slurm"),
        (
            {**slurm_role(), "OFFICIAL_TRAINER_HOSTS": "worker=n2,;ps=n2"},
            r"cannot read 'worker=n2,'; expected such as chief=n1;worker=n1,n2;ps=n2",
        ),
        ({**slurm_role(), "OFFICIAL_TRAINER_HOSTS": "worker"}, r"cannot read 'worker'; expected such as"),
        ({**slurm_role(), "OFFICIAL_TRAINER_HOSTS": "worker=n2;ps=n10"}, r"no chief that coordinates them"),
        (slurm(SLURM_PROCID="x"), r"SLURM_PROCID='x': expected a number from 0; srun sets it"),
        (slurm(SLURM_JOB_ID=None), r"SLURM_JOB_ID is not set.*srun"),
        (slurm(SLURM_STEP_NODELIST=None), r"SLURM_JOB_NODELIST is not set"),
        (
            slurm(SLURM_STEP_TASKS_PER_NODE="3"),
            r"TASKS_PER_NODE='3' does not distribute 3 tasks over the 2 nodes n2,n10",
        ),
        (slurm(SLURM_STEP_TASKS_PER_NODE="2;1"), r"expected such as 2\(x3\),1"),
        (slurm(3), r"the index of this worker is 3, but there is 0 to 2"),
        (slurm(1, SLURM_NODEID="1"), r"task 1 of 3 belongs on node 0 of n\[2,10\]; .*srun --distribution=block"),
    ],
)
def test_a_malformed_slurm_is_refused(environ, said):
    with pytest.raises(ClusterError, match=said):
        cluster_env(environ, scontrol=scontrol)


def test_slurm_without_scontrol():
    with pytest.raises(ClusterError, match=r"`scontrol show hostnames n\[2,10\]` fails: .*not found; put scontrol on"):
        cluster_env(slurm(), scontrol=no_slurm)


def test_scontrol_is_run(tmp_path, monkeypatch):
    """What it prints is returned, what it complains about is said."""
    (tmp_path / "scontrol").write_text(
        '#!/bin/sh\n[ "$1" = show ] && echo "$@" || { echo "no such $1" >&2; exit 1; }\n'
    )
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert environment.run_scontrol("show", "hostnames") == "show hostnames\n"
    with pytest.raises(OSError, match="no such thing"):
        environment.run_scontrol("thing")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(OSError, match="scontrol"):
        environment.run_scontrol("show")


# Kubernetes


def jobset(role="worker", pod=0, **changes):
    environ = {
        "OFFICIAL_TRAINER_CLUSTER": "chief=1,worker=2,ps=1",
        "JOBSET_NAME": "run",
        "REPLICATED_JOB_NAME": role,
        "JOB_INDEX": "0",
        "JOB_COMPLETION_INDEX": str(pod),
    }
    return {name: value for name, value in {**environ, **changes}.items() if value is not None}


def test_jobset_by_its_stable_names():
    found = cluster_env(jobset("worker", 1))
    assert found.addresses == {
        "chief": ("run-chief-0-0.run:2222",),
        "worker": ("run-worker-0-0.run:2222", "run-worker-0-1.run:2222"),
        "ps": ("run-ps-0-0.run:2222",),
    }
    assert found.name == "worker 1"
    assert cluster_env(jobset("chief", JOB_INDEX=None)).is_chief
    assert cluster_env(jobset("evaluator")).name == "evaluator"


def test_jobset_of_several_jobs_for_a_role():
    found = cluster_env(jobset("worker", 1, OFFICIAL_TRAINER_CLUSTER="worker=2x3", JOB_INDEX="1"))
    assert found.addresses["worker"][4] == "run-worker-1-1.run:2222"
    assert found.index == 4


def test_an_indexed_job_of_workers():
    environ = {"OFFICIAL_TRAINER_CLUSTER": "worker=2", "JOB_NAME": "run", "JOB_COMPLETION_INDEX": "1"}
    found = cluster_env(environ)
    assert found.addresses == {"worker": ("run-0.run:2222", "run-1.run:2222")}
    assert found.index == 1


def test_pods_of_which_nobody_says_that_they_belong_together():
    assert cluster_env(jobset(OFFICIAL_TRAINER_CLUSTER=None)) is None


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (
            jobset(OFFICIAL_TRAINER_CLUSTER="worker:2"),
            r"cannot read 'worker:2'; expected such as chief=1,worker=4,ps=2",
        ),
        (jobset(OFFICIAL_TRAINER_CLUSTER="wrker=2"), r'a role is "wrker"; .*did you mean worker\?'),
        (jobset(OFFICIAL_TRAINER_CLUSTER="worker=2,worker=1"), r"worker is there twice; keep one"),
        (jobset(OFFICIAL_TRAINER_CLUSTER="worker=2,ps=1"), r"no chief that coordinates them"),
        (jobset("trainer"), r'REPLICATED_JOB_NAME is "trainer"; expected one of'),
        (jobset(REPLICATED_JOB_NAME=None), r"REPLICATED_JOB_NAME is not set.*take it from the pod's label"),
        (jobset(JOB_INDEX="a"), r"JOB_INDEX='a': expected a number"),
        (jobset(JOB_COMPLETION_INDEX=None), r"JOB_COMPLETION_INDEX is not set.*completionMode: Indexed"),
        (jobset("worker", 2), r"JOB_COMPLETION_INDEX=2, but by OFFICIAL_TRAINER_CLUSTER=.* a job of worker has 2"),
        (jobset(JOB_INDEX="1"), r"the index of this worker is 2, but there is 0 to 1"),
        (jobset(JOBSET_NAME=None), r"JOB_NAME is not set.*headless Service"),
        (jobset(JOBSET_NAME=None, JOB_NAME="run"), r"a Job without a JobSet has workers only; use a JobSet"),
    ],
)
def test_a_malformed_jobset_is_refused(environ, said):
    with pytest.raises(ClusterError, match=said):
        cluster_env(environ)


# SkyPilot


def skypilot(rank=0, **changes):
    environ = {
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n",
        "SKYPILOT_NODE_RANK": str(rank),
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "4",
    }
    return {name: value for name, value in {**environ, **changes}.items() if value is not None}


def test_skypilot_has_a_worker_on_each_node():
    """N20: in the order of the ranks; the two variables beside are for checks alone."""
    found = [cluster_env(skypilot(rank)) for rank in (0, 1)]
    assert [each.name for each in found] == ["worker 0", "worker 1"]
    assert all(each.addresses == {"worker": (A, B)} and each.source == "SkyPilot" for each in found)
    assert cluster_env(skypilot(SKYPILOT_NUM_NODES=None, SKYPILOT_NUM_GPUS_PER_NODE=None)) == found[0]
    ipv6 = cluster_env(skypilot(SKYPILOT_NODE_IPS="fd00::1\nfd00::2"))
    assert ipv6.addresses["worker"] == ("[fd00::1]:2222", "[fd00::2]:2222")


def test_skypilot_with_one_node():
    assert cluster_env(skypilot(SKYPILOT_NODE_IPS="10.0.0.1", SKYPILOT_NUM_NODES="1")) is None
    assert cluster_env({"SKYPILOT_TASK_ID": "sky-1", "SKYPILOT_NUM_NODES": "2"}) is None  # `setup` of a task


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (skypilot(SKYPILOT_NODE_IPS=None), r"SKYPILOT_NODE_IPS is not set, .*; SkyPilot sets it for `run` of a task"),
        (skypilot(SKYPILOT_NODE_RANK=None), r"SKYPILOT_NODE_RANK is not set, .*start this there, or set TF_CONFIG"),
        (skypilot("first"), r"SKYPILOT_NODE_RANK='first': expected a number from 0; SkyPilot sets it"),
        (skypilot(SKYPILOT_NUM_GPUS_PER_NODE="A100"), r"SKYPILOT_NUM_GPUS_PER_NODE='A100': expected a number from 0"),
        (skypilot(SKYPILOT_NUM_NODES="two"), r"SKYPILOT_NUM_NODES='two': expected a number from 0"),
        (
            skypilot(SKYPILOT_NUM_NODES="3"),
            r"SkyPilot: SKYPILOT_NUM_NODES=3, but SKYPILOT_NODE_IPS has 2: 10.0.0.1,10.0.0.2; SkyPilot sets it",
        ),
        (skypilot(2), r"SkyPilot: the index of this worker is 2, but there is 0 to 1"),
        (
            skypilot(SKYPILOT_NODE_IPS="10.0.0.1\n10.0.0.1"),
            r"SkyPilot: 10.0.0.1:2222 is the address of both worker 0 and",
        ),
        (
            skypilot(SKYPILOT_NODE_IPS="10.0.0.1,10.0.0.2", SKYPILOT_NUM_NODES="1"),
            r"SkyPilot: worker\[0\] is '10.0.0.1,10.0.0.2:2222', of which '10.0.0.1,10.0.0.2' is no host name",
        ),
    ],
)
def test_a_malformed_skypilot_is_refused(environ, said):
    """N20: with the variable, and with who sets it."""
    with pytest.raises(ClusterError, match=said):
        cluster_env(environ)


# The config


def test_worker_hosts_where_the_environment_says_nothing():
    found = cluster_env({}, Runtime(f"{A}, {B}", 1))
    assert found == Cluster(addresses={"worker": (A, B)}, role="worker", index=1, source="runtime.worker_hosts")
    assert cluster_env({}, Runtime(A, 0)) is None


def test_the_environment_and_the_config_agree_or_are_refused():
    environ = tf_config(TWO, worker(1))
    assert cluster_env(environ, Runtime(f"{A},{B}", 1)).source == "TF_CONFIG"
    with pytest.raises(ClusterError, match=r"TF_CONFIG and runtime.worker_hosts differ: .*worker 1 of .* worker 0 of"):
        cluster_env(environ, Runtime(f"{A},{B}", 0))
    with pytest.raises(ClusterError, match="remove the two fields"):
        cluster_env(tf_config({"worker": [A]}, worker(0)), Runtime(f"{A},{B}", 0))
    with pytest.raises(
        ClusterError, match=r"SkyPilot and runtime.worker_hosts differ: by SkyPilot this is worker 1 of"
    ):
        cluster_env(skypilot(1), Runtime(f"{A},{C}", 1))
    evaluator = cluster_env(tf_config(TWO, {"type": "evaluator"}), Runtime(f"{A},{B}", 0))
    assert evaluator.name == "evaluator"


def test_worker_hosts_that_cannot_be():
    with pytest.raises(ClusterError, match=r"runtime.worker_hosts: worker\[1\] is 'b', which has no port"):
        cluster_env({}, Runtime(f"{A},b", 0))
    with pytest.raises(ClusterError, match=r"runtime.worker_hosts: the index of this worker is 2"):
        cluster_env({}, Runtime(f"{A},{B}", 2))


def test_tf_config_counts_before_kubernetes_before_skypilot_before_slurm():
    """A launcher inside of a job of another scheduler has the last word; SkyPilot may run its tasks on Slurm."""
    everything = {**slurm(), **skypilot(), **jobset(), **tf_config(TWO, worker(0))}
    assert cluster_env(everything, scontrol=scontrol).source == "TF_CONFIG"
    del everything["TF_CONFIG"]
    assert cluster_env(everything, scontrol=scontrol).source == "OFFICIAL_TRAINER_CLUSTER"
    del everything["OFFICIAL_TRAINER_CLUSTER"]
    assert cluster_env(everything, scontrol=scontrol).source == "SkyPilot"
    assert cluster_env({**slurm_role(), **skypilot()}, scontrol=scontrol).source == "Slurm"  # of `launch slurm`
    del everything["SKYPILOT_NODE_IPS"], everything["SKYPILOT_NODE_RANK"]
    assert cluster_env(everything, scontrol=scontrol).source == "Slurm"
