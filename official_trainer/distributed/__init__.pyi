from .cluster import Cluster as Cluster
from .cluster import ClusterError as ClusterError
from .environment import cluster_env as cluster_env
from .strategy import DeviceError as DeviceError
from .strategy import build_strategy as build_strategy
