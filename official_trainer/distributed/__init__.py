"""The processes and devices that compute together.

Owns: the cluster, the strategy, and the messages between its processes. Does not own: the computation (`engine/`).
"""

from typing import TYPE_CHECKING

from official_trainer import lazy

if TYPE_CHECKING:
    from official_trainer.distributed.cluster import Cluster, ClusterError
    from official_trainer.distributed.environment import cluster_env
    from official_trainer.distributed.strategy import DeviceError, build_strategy
else:
    __getattr__ = lazy.face(
        __name__,
        {
            "Cluster": "official_trainer.distributed.cluster",
            "ClusterError": "official_trainer.distributed.cluster",
            "DeviceError": "official_trainer.distributed.strategy",
            "build_strategy": "official_trainer.distributed.strategy",
            "cluster_env": "official_trainer.distributed.environment",
        },
    )

__all__ = ["Cluster", "ClusterError", "DeviceError", "build_strategy", "cluster_env"]
