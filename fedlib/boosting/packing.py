"""Histograms in fewer bytes: without empty bins, and with integers as wide as they need to be.

Most bins of a small node are empty, and the lowest bits of sums of float32 numbers are often 0. A
packed histogram returns exactly.
"""

from __future__ import annotations

from math import prod
from typing import Annotated

import msgspec
import numpy as np

from fedlib.boosting.messages import BuildHistograms, Histograms, Loss
from fedlib.core.array_types import Ints
from fedlib.core.messages import Array, Message, MessageError
from fedlib.kernels.packing import (
    N_BYTES,
    count_filled,
    measure_sums,
    pack_sums,
    unpack_sums,
)

__all__ = [
    "BuildPackedHistograms",
    "PackedHistograms",
    "unpack",
]


class PackedHistograms(Message):
    """The same as `Histograms`, in fewer bytes.

    ``filled`` has one bit per node and bin, which says whether its sums are not 0. Each of these
    sums is an integer of ``width`` bytes, times 2**shift; ``planes`` contains the lowest bytes of
    all integers, then the next ones.
    """

    discloses = Histograms.discloses
    shift: Annotated[int, msgspec.Meta(ge=0, le=62)]
    width: Annotated[int, msgspec.Meta(ge=1, le=N_BYTES)]
    filled: Annotated[np.ndarray, Array("uint8", ("bytes of bits",))]
    planes: Annotated[np.ndarray, Array("uint8", ("bytes",))]
    loss: Loss


class BuildPackedHistograms(BuildHistograms, kw_only=True):
    """Sum your gradients as for `BuildHistograms`; reply in fewer bytes."""

    discloses = BuildHistograms.discloses
    reply = PackedHistograms

    def reply_lengths(self) -> dict[str, int]:
        n_sums = int(self.wanted.sum()) * self.n_bins
        return {"bytes of bits": -(-n_sums // 8), "bytes": 2 * N_BYTES * n_sums}

    def memory(self) -> float:
        """Return the count of the sums before they are packed: the reply's values are bytes."""
        return float(prod(super().reply_lengths().values()))

    def accept(self, reply: Message) -> Histograms:
        """Return the histograms; raise MessageError unless they fit the request."""
        assert isinstance(reply, PackedHistograms)
        return super().accept(unpack(reply, int(self.wanted.sum()), self.n_bins))


def pack(sums: Ints, loss: float) -> PackedHistograms:
    """Return packed histograms; ``sums`` is an array (nodes, bins, 2).

    Examples
    --------
    >>> sums = np.zeros((1, 100, 2), np.int64)
    >>> sums[0, 7] = -3 * 2**40, 2**41
    >>> packed = pack(sums, 0.0)
    >>> packed.shift, packed.width, len(packed.planes)
    (40, 1, 2)
    >>> bool((unpack(packed, 1, 100).sums == sums).all())
    True
    """
    bins = sums.reshape(-1, 2)
    filled, n_filled, used, magnitude = measure_sums(bins)
    shift = (int(used) & -int(used)).bit_length() - 1 if used else 0
    width = max(1, ((int(magnitude) >> shift).bit_length() + 8) // 8)  # with the sign
    return PackedHistograms(
        shift=shift,
        width=width,
        filled=filled,
        planes=pack_sums(bins, n_filled, shift, width).ravel(),
        loss=loss,
    )


def unpack(packed: PackedHistograms, n_nodes: int, n_bins: int) -> Histograms:
    """Return the histograms of ``n_nodes`` nodes and ``n_bins`` bins.

    Raises
    ------
    MessageError
        When the packed ones are of other nodes or bins, or their sums exceed an int64.
    """
    if len(packed.filled) != -(-n_nodes * n_bins // 8):
        raise MessageError(f"{len(packed.filled)} bytes of bits for {n_nodes} × {n_bins} bins")
    n_values = 2 * count_filled(packed.filled, n_nodes * n_bins)
    if len(packed.planes) != n_values * packed.width:
        raise MessageError(f"{len(packed.planes)} bytes for {n_values} sums of {packed.width}")
    planes = packed.planes.reshape(packed.width, n_values)
    sums = np.zeros((n_nodes * n_bins, 2), np.int64)
    largest = unpack_sums(packed.filled, planes, packed.shift, sums)
    if largest * 2.0**packed.shift >= 2.0**63:
        raise MessageError("the sums exceed an int64")
    return Histograms(sums.reshape(n_nodes, n_bins, 2), packed.loss)
