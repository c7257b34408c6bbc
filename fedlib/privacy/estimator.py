"""The base class of estimators with ``epsilon``."""

from __future__ import annotations

from typing import Any

from fedlib.loss import Privacy
from fedlib.privacy.accounting import privacy_per_request
from fedlib.protocol import Flow
from fedlib.secure.estimator import SecureFederated

__all__ = ["PrivateFederated"]


class PrivateFederated(SecureFederated):
    """An estimator whose replies can have noise, so that a run is differentially private.

    A subclass has the parameters ``epsilon``, ``delta`` and ``secure``.
    """

    epsilon: float | None
    delta: float

    def protocol(self) -> Flow[Any]:
        if self.epsilon is None and self.delta:
            raise ValueError(f"delta needs epsilon, got delta={self.delta!r}")
        return super().protocol()

    def _privacy(self, n_requests: int) -> Privacy:
        """Return the privacy loss of each request, if there is an epsilon.

        Parameters
        ----------
        n_requests : int
            The largest number of requests for data, which must not depend on the data.

        Raises
        ------
        ValueError
            When epsilon or delta is out of range, or secure sums are to have noise with delta=0.
        """
        if self.secure and not self.delta:
            raise ValueError(
                "secure=True with epsilon needs delta > 0, because only Gaussian noise is shared"
                f" among the clients; got delta={self.delta}"
            )
        assert self.epsilon is not None
        return privacy_per_request(self.epsilon, self.delta, n_requests)
