"""What a process of a test's cluster does before its command: it reads who takes part."""

import functools
import json
import os

from official_trainer import run as engine
from official_trainer.cluster import Cluster


def cluster_of_environment():
    """Has the run know the cluster that `TF_CONFIG` describes."""
    described = json.loads(os.environ["TF_CONFIG"])
    addresses = {role: tuple(listed) for role, listed in described["cluster"].items()}
    task = described["task"]
    cluster = Cluster(addresses=addresses, role=task["type"], index=task["index"], source="TF_CONFIG")
    engine.run = functools.partial(engine.run, cluster=cluster)
