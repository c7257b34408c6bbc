"""The messages about histograms of gradients: dense, packed, as a secure sum, or with noise.

Most bins of a small node are empty, and the lowest bits of sums of float32 numbers are often 0. A
packed histogram leaves both out. It is written from a client's rows and added to the sums of all
clients without a dense histogram of its own, and has exactly the same sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.messages import (
    Count,
    Loss,
    Splits,
    Weight,
    check_length,
)
from fedlib.core.array_types import Ints
from fedlib.core.messages import Array, Message, MessageError
from fedlib.core.privacy_loss import Privacy
from fedlib.kernels.histograms import add_dense
from fedlib.kernels.packing import (
    N_BYTES,
    Packed,
    add_packed,
    count_filled,
    pack_pairs,
)
from fedlib.protection.privacy.messages import NOISY, NoisyRequest
from fedlib.protection.secure.fixed_point import digits_of_limits


class Measured(NamedTuple):
    """What a server checks of a client's histograms.

    Attributes
    ----------
    totals : array (n_nodes, 2) of int64
        The sums over the bins of the first feature.
    are_equal : bool
        Whether those of every other feature are the same.
    extremes : sequence of int
        The smallest and the largest sum of gradients, and the same of hessians.
    """

    totals: Ints
    are_equal: bool
    extremes: Sequence[int]


class Histograms(Message):
    """The sums of gradients and hessians in each bin of each feature, for the requested nodes."""

    discloses = (
        "sums that disclose a client's rows of each class in every bin of every node "
        "(tree 1: exactly); its log-loss"
    )
    sums: Annotated[np.ndarray, Array("int64", ("nodes", "bins", "pair"))]
    loss: Loss

    @staticmethod
    def add_up(
        replies: Mapping[str, Any], nodes: Ints, offsets: Ints, histograms: Ints
    ) -> dict[str, Measured]:
        """Add the clients' sums to those of ``nodes`` among all ``histograms``; measure them.

        The bins of feature f are ``offsets[f]`` to ``offsets[f + 1]``. The histograms are an array
        (n_nodes, n_bins, 2).
        """
        return {
            name: Measured(*add_dense(reply.sums, nodes, offsets, histograms))
            for name, reply in replies.items()
        }


class BuildHistograms(Splits, kw_only=True):
    """Sum your gradients in every bin, for the ``wanted`` ones of the open nodes."""

    discloses = "the splits chosen so far and the leaves of the finished tree"
    reply: ClassVar[type[Message]] = Histograms
    wanted: Annotated[np.ndarray, Array("bool", ("open",))]
    n_bins: Count

    def reply_lengths(self) -> dict[str, int]:
        return {"nodes": int(np.count_nonzero(self.wanted)), "bins": self.n_bins, "pair": 2}

    def accept(self, reply: Message) -> AnyHistograms:
        """Raise MessageError unless there is one pair of sums per node and bin.

        Whether they are possible, the flow checks while it adds them up.
        """
        assert isinstance(reply, Histograms)
        check_length("nodes", len(reply.sums), int(np.count_nonzero(self.wanted)))
        check_length("bins", reply.sums.shape[1], self.n_bins)
        check_length("sums", reply.sums.shape[2], 2)
        return reply


class SummableHistograms(Histograms):
    """Histograms of which only the sum over all clients reaches the server, with their weight."""

    discloses = "the rows of each class in every bin of every node (tree 1: exactly); the log-loss"
    weight: Annotated[float, msgspec.Meta(ge=0)]


class SumHistograms(BuildHistograms, kw_only=True):
    """Sum your gradients as for `BuildHistograms`, for a sum over all clients.

    A sum that fails is requested again. ``n_rounds`` is the number of rounds that were finished
    when this request was first made, so that a client adds the values of a tree only once. The sums
    of all clients are at most ``max_sum`` and ``max_loss``, and a larger loss of one row counts as
    ``max_loss``.
    """

    discloses = BuildHistograms.discloses
    reply: ClassVar[type[Message]] = SummableHistograms
    n_rounds: Count
    max_loss: Loss
    max_sum: Weight

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        return digits_of_limits({"loss": self.max_loss, "weight": self.max_sum}, n_clients)


class NoisyHistograms(Message):
    """Histograms with noise in every bin, occupied or not."""

    discloses = "a client's sums of clipped gradients in every bin of every node, with noise"
    sums: Annotated[np.ndarray, Array("float64", ("nodes", "bins", "pair"), -NOISY, NOISY)]


class SumNoisyHistograms(NoisyRequest, BuildHistograms, kw_only=True):
    """Clip the gradients of your rows, sum them as for `BuildHistograms`, and add noise.

    ``max_gradient`` is the largest gradient of a row of a regression; see
    `fedlib.boosting.private`. For ``n_rounds`` see `SumHistograms`.
    """

    discloses = "the splits chosen so far and the leaves of the finished tree, which have noise"
    reply: ClassVar[type[Message]] = NoisyHistograms
    n_rounds: Count
    privacy: Privacy
    max_gradient: Annotated[float, msgspec.Meta(gt=0, le=1e6)]


class PackedHistograms(Message):
    """The same as `Histograms`, in fewer bytes.

    ``filled`` has one bit per node and bin, which says whether its sums are not 0; the first bin is
    the lowest bit of the first byte. Each of these sums is an integer of ``width`` bytes, the
    lowest byte first, times 2**shift.
    """

    discloses = Histograms.discloses
    shift: Annotated[int, msgspec.Meta(ge=0, le=62)]
    width: Annotated[int, msgspec.Meta(ge=1, le=N_BYTES)]
    filled: Annotated[np.ndarray, Array("uint8", ("bytes of bits",))]
    values: Annotated[np.ndarray, Array("uint8", ("bytes",))]
    loss: Loss

    @staticmethod
    def add_up(
        replies: Mapping[str, Any], nodes: Ints, offsets: Ints, histograms: Ints
    ) -> dict[str, Measured]:
        """Do the same as `Histograms.add_up`."""
        ends = np.cumsum([len(reply.values) for reply in replies.values()])
        packed = Packed(
            filled=np.stack([reply.filled for reply in replies.values()]),
            values=np.concatenate([reply.values for reply in replies.values()]),
            first_byte=np.append(0, ends[:-1]),
            width=np.array([reply.width for reply in replies.values()]),
            shift=np.array([reply.shift for reply in replies.values()]),
        )
        totals, are_equal, extremes = add_packed(packed, nodes, offsets, histograms)
        return {
            name: Measured(of_client, is_equal, [value << reply.shift for value in found])
            for (name, reply), of_client, is_equal, found in zip(
                replies.items(), totals, are_equal.tolist(), extremes.tolist(), strict=True
            )
        }


AnyHistograms = Histograms | PackedHistograms


class BuildPackedHistograms(BuildHistograms, kw_only=True):
    """Sum your gradients as for `BuildHistograms`; reply in fewer bytes."""

    discloses = BuildHistograms.discloses
    reply = PackedHistograms

    def reply_lengths(self) -> dict[str, int]:
        n_sums = int(self.wanted.sum()) * self.n_bins
        return {"bytes of bits": -(-n_sums // 8), "bytes": 2 * N_BYTES * n_sums}

    def memory(self) -> float:
        """Return the largest count of sums: the reply's values are bytes."""
        return float(prod(super().reply_lengths().values()))

    def accept(self, reply: Message) -> PackedHistograms:
        """Raise MessageError unless there is one pair of sums per bin that is filled."""
        assert isinstance(reply, PackedHistograms)
        n_bins = int(np.count_nonzero(self.wanted)) * self.n_bins
        if len(reply.filled) != -(-n_bins // 8):
            raise MessageError(f"{len(reply.filled)} bytes of bits for {n_bins} bins")
        n_values = 2 * count_filled(reply.filled, 0, n_bins)
        if len(reply.values) != n_values * reply.width:
            raise MessageError(f"{len(reply.values)} bytes for {n_values} sums of {reply.width}")
        return reply


def pack(
    bits: NDArray[np.uint64], n_bits: int, pairs: Ints, measured: tuple[int, int, int], loss: float
) -> PackedHistograms:
    """Return packed histograms from what `fedlib.kernels.packing.move_and_pack` has written."""
    n_filled, used, magnitude = map(int, measured)  # of NumPy, if the kernel is not compiled
    shift = (used & -used).bit_length() - 1 if used else 0
    width = max(1, ((magnitude >> shift).bit_length() + 8) // 8)  # with the sign
    values = np.empty(2 * n_filled * width, np.uint8)
    pack_pairs(pairs[:n_filled], shift, width, values)
    filled = bits.view(np.uint8)[: -(-n_bits // 8)]
    return PackedHistograms(shift=shift, width=width, filled=filled, values=values, loss=loss)


def unpack(reply: PackedHistograms, request: BuildPackedHistograms) -> Histograms:
    """Return the histograms of a reply to this request that was accepted."""
    sums = np.zeros((np.count_nonzero(request.wanted), request.n_bins, 2), np.int64)
    reply.add_up({"": reply}, np.arange(len(sums)), np.array([0, request.n_bins]), sums)
    return Histograms(sums, reply.loss)
