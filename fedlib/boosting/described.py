"""What the server knows of the clients' rows before the first tree."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedlib.boosting.classes import Class
from fedlib.boosting.label_sums import LabelSums
from fedlib.core.agreement import MAX_SHOWN
from fedlib.core.names import printable
from fedlib.core.protocol import Replies

EVERYONE = "all clients"  # the name under which the server keeps sums over all clients


@dataclass(frozen=True)
class Pool:
    """What the server knows of all clients together, if their sums are masked.

    Attributes
    ----------
    members : tuple of str
        The clients whose rows are described.
    largest_weight : float
        An upper bound on a client's total weight.
    """

    members: tuple[str, ...]
    largest_weight: float


@dataclass(frozen=True, kw_only=True)
class Described:
    """The clients' descriptions of their rows.

    Attributes
    ----------
    sums : dict of str to LabelSums
        The sums over the labels of each client; with secure sums, those of `EVERYONE`.
    n_rows : dict of str to int
        The numbers of rows, with the same names.
    classes : list of bool, int, float or str
        All classes in ascending order; empty for a regression.
    n_features : int
    features : tuple of str
        The features' names; empty if they have none.
    texts : list of int
        The features that contain text.
    learning_rate : float
        The clients' mean, a float32 number.
    replies : Replies
        The descriptions of the clients that are left.
    pool : Pool, optional
        With secure sums, or with noise.
    first_sizes : mapping of str to float, optional
        If rows start from base margins of their own: the size of each client's first sums, where
        it does not follow from the weights of its rows.
    own_weights : mapping of str to float, optional
        If rows have sample weights: their sum at each client.
    reg_lambda : float
        The penalty on the weight of a leaf, if the settings leave it to the noise.
    """

    sums: dict[str, LabelSums]
    n_rows: dict[str, int]
    classes: list[Class]
    n_features: int
    features: tuple[str, ...]
    texts: Sequence[int]
    learning_rate: float
    replies: Replies
    pool: Pool | None = None
    first_sizes: Mapping[str, float] | None = None
    own_weights: Mapping[str, float] | None = None
    reg_lambda: float = 1.0

    @property
    def n_margins(self) -> dict[str, int]:
        """The count of columns of base margins of each client; protected clients have none."""
        return {name: getattr(reply, "n_margins", 0) for name, reply in self.replies.items()}

    @property
    def weights(self) -> dict[str, float]:
        """The weight of the rows of each client."""
        return {name: of_client.weight for name, of_client in self.sums.items()}


def agree_on_names(replies: Replies) -> tuple[str, ...]:
    """Return the features' names; warn of clients that sent none when others did."""
    names: dict[str, tuple[str, ...]] = {name: reply.features for name, reply in replies.items()}
    features = next(filter(None, names.values()), ())
    nameless = ", ".join(repr(client) for client, sent in names.items() if not sent)
    if features and nameless:
        warnings.warn(
            f"no feature names from {printable(nameless, MAX_SHOWN)}: assumed to be"
            f" {printable(', '.join(features), MAX_SHOWN)}, as at the other clients",
            stacklevel=2,
        )
    return features


def check_weight(weight: float) -> None:
    """Raise ValueError when no row has a weight."""
    if not weight:
        raise ValueError("at least one row must have a weight above 0; all clients together have 0")
