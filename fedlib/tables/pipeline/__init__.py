"""Pipelines: fill gaps, scale numbers and encode text by common rules, then run any protocol.

The preprocessing is the first part of the run: its statistics are the requests of
`fedlib.tables.summary`. The server sends the fitted rules to the clients. From then on, a client
that wraps the protocol's client hands it the transformed table.
"""

from fedlib.tables.pipeline.client import PipelineClient
from fedlib.tables.pipeline.estimator import FederatedPipeline
from fedlib.tables.pipeline.flow import PipelineModel, pipeline, preprocess
from fedlib.tables.pipeline.messages import PipelineState, Preprocess, PreprocessAndProject

__all__ = [
    "FederatedPipeline",
    "PipelineClient",
    "PipelineModel",
    "PipelineState",
    "Preprocess",
    "PreprocessAndProject",
    "pipeline",
    "preprocess",
]
