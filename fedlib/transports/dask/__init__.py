"""Dask: each partition of a data set is a client on a worker of a ``distributed`` cluster.

The data stay where they lie. Needs the extra ``dask``: ``pip install "fedlib-study[dask]"``.
"""

from fedlib.transports.dask.tasks import predict
from fedlib.transports.dask.transport import ClientError, Dask

__all__ = ["ClientError", "Dask", "predict"]
