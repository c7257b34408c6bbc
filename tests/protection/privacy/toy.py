"""A protocol that counts rows, with and without noise."""

from typing import Annotated

import numpy as np

from fedlib.core.client import handles
from fedlib.core.messages import Array, Message
from fedlib.core.points import PointsClient
from fedlib.protection.privacy import NOISY, NoisyRequest, Privacy, Sensitivity, add_noise

COUNT = Sensitivity(l1=1.0, l2=1.0, n_entries=1)


N_VALUES = 2000


class NoisyCount(Message):
    """The number of rows, and values that are 0, all with noise."""

    discloses = "the number of rows, with noise"
    count: Annotated[np.ndarray, Array("float64", ("values",), -NOISY, NOISY)]


class CountNoisily(NoisyRequest):
    """Count your rows, and add noise."""

    discloses = "nothing"
    reply = NoisyCount
    privacy: Privacy

    def reply_lengths(self):
        return {"values": N_VALUES}

    def sensitivity(self):
        return COUNT


class RowCount(Message):
    """The number of rows."""

    discloses = "the number of rows"
    n_rows: int


class CountRows(Message):
    """Count your rows."""

    discloses = "nothing"
    reply = RowCount


class ToyClient(PointsClient):
    """A client that counts its rows."""

    @handles(CountNoisily)
    def count_noisily(self, request):
        values = np.zeros(N_VALUES)
        values[0] = len(self.X)
        return NoisyCount(add_noise(values, COUNT, request.privacy, self.n_shares))

    @handles(CountRows)
    def count_rows(self, request):
        return RowCount(len(self.X))
