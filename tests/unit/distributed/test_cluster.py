"""Who takes part in a run, by `TF_CONFIG` and the config: tables, and every refusal."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.distributed.cluster import Cluster, ClusterError
from official_trainer.distributed.environment import cluster_env
from official_trainer.errors import ExitCode
from tests.support import golden


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


def test_a_malformed_tf_config_is_refused(request):
    """Each message has the variable, the value, what is allowed or the fix."""

    def say(text):
        with pytest.raises(ClusterError) as raised:
            cluster_env({"TF_CONFIG": text})
        assert raised.value.exit_code == ExitCode.CONFIG
        assert isinstance(raised.value, ValueError)
        return str(raised.value)

    golden.check({"TF_CONFIG": say}, request)


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
