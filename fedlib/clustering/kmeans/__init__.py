"""Federated k-means: clients hold different rows of the same features.

There are two methods:

- ``"lloyd"``, the default: in each round, every client sends the sums and counts of its points by
  their nearest centre. The server's next centres are those of Lloyd's iteration on pooled points.
- ``"one_shot"``: each client clusters its points once (the child), and the server clusters the
  centres of all clients (the parent).

Sources: K, for ``"one_shot"``; [1]_ for Lloyd's iteration and [2]_ for its start.

References
----------
.. [1] S. Lloyd, Least squares quantization in PCM, IEEE Transactions on Information Theory 28,
   1982.
.. [2] D. Arthur, S. Vassilvitskii, k-means++: the advantages of careful seeding, SODA 2007.
"""

from fedlib.clustering.kmeans.client import FederatedKMeansClient
from fedlib.clustering.kmeans.estimator import FederatedKMeans
from fedlib.clustering.kmeans.flow import KMeansModel, SumClustersNoisily, lloyd, one_shot
from fedlib.clustering.kmeans.local import child_centres, group_means, sum_clusters
from fedlib.clustering.kmeans.messages import ClusterSums, SumClusters

__all__ = [
    "ClusterSums",
    "FederatedKMeans",
    "FederatedKMeansClient",
    "KMeansModel",
    "SumClusters",
    "SumClustersNoisily",
    "child_centres",
    "group_means",
    "lloyd",
    "one_shot",
    "sum_clusters",
]
