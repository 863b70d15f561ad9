"""Which processes and devices compute together.

Owns: the cluster, the strategy, and what its processes tell each other. Does not own: what they compute (`engine/`).
"""

from typing import TYPE_CHECKING

from official_trainer import lazy

if TYPE_CHECKING:
    from official_trainer.distributed.cluster import Cluster, ClusterError, cluster_env
    from official_trainer.distributed.strategy import DeviceError, build_strategy

__all__ = ["Cluster", "ClusterError", "DeviceError", "build_strategy", "cluster_env"]

__getattr__ = lazy.face(
    __name__,
    {
        "Cluster": "official_trainer.distributed.cluster",
        "ClusterError": "official_trainer.distributed.cluster",
        "DeviceError": "official_trainer.distributed.strategy",
        "build_strategy": "official_trainer.distributed.strategy",
        "cluster_env": "official_trainer.distributed.cluster",
    },
)
