from . import trees as trees
from .cluster import Cluster as Cluster
from .cluster import ClusterError as ClusterError
from .collective import collective as collective
from .environment import cluster_env as cluster_env
from .replicas import ReplicaIntegrityError as ReplicaIntegrityError
from .strategy import DeviceError as DeviceError
from .strategy import build_strategy as build_strategy
