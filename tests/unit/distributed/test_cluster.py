"""Who takes part in a run, by `TF_CONFIG` and the config: tables, and every refusal."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.distributed.cluster import Cluster, ClusterError
from official_trainer.distributed.environment import cluster_env
from official_trainer.errors import ExitCode


@dataclasses.dataclass
class Runtime:
    worker_hosts: str | None = None
    task_index: int | None = None


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
    assert cluster_env(environ, Runtime()) is None


def test_what_platforms_add_is_fine():
    """TFJob has keys of its own."""
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
    evaluator = cluster_env(tf_config(TWO, {"type": "evaluator"}), Runtime(f"{A},{B}", 0))
    assert evaluator.name == "evaluator"


def test_worker_hosts_that_cannot_be():
    with pytest.raises(ClusterError, match=r"runtime.worker_hosts: worker\[1\] is 'b', which has no port"):
        cluster_env({}, Runtime(f"{A},b", 0))
    with pytest.raises(ClusterError, match=r"runtime.worker_hosts: the index of this worker is 2"):
        cluster_env({}, Runtime(f"{A},{B}", 2))
