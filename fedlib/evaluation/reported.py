"""How the estimators of scores report them: by name, with intervals, and why some are unknown."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from fedlib.core.array_types import Floats
from fedlib.core.protocol import Flow
from fedlib.protection.estimator import ProtectedFederated


class Scored(ProtectedFederated):
    """Base class of the estimators of scores, which can be masked or have noise.

    A subclass has `_score`, the flow, whose result has ``problems``: why scores are NaN.
    """

    scores_: dict[str, float]
    intervals_: dict[str, tuple[float, float]]
    of_site = ""  # the site that is scored, if it is one of several

    def _score(self) -> Flow[Any]:
        """Return the server flow."""
        raise NotImplementedError

    def _flow(self) -> Flow[Any]:
        """Return the server flow, which warns of scores that are NaN."""
        return self._reporting(self._score())

    def _reporting(self, flow: Flow[Any]) -> Flow[Any]:
        scores = yield from flow
        for problem in getattr(scores, "problems", ()):
            warnings.warn(f"{self.of_site}{problem}", stacklevel=2)
        return scores

    def _set_scores(self, scores: Mapping[str, float], intervals: Floats) -> None:
        """Set the attributes; ``intervals`` (n_scores, 2) are in the order of the scores."""
        self.scores_ = dict(scores)
        ends = [(low, high) for low, high in intervals.tolist()]
        self.intervals_ = dict(zip(self.scores_, ends, strict=True))
