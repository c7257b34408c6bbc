"""The estimator of leave-one-site-out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Annotated, Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from fedlib.core.client import Client, roles_of
from fedlib.core.column_names import listed
from fedlib.core.estimator import Federated
from fedlib.core.parameters import KW_ONLY, Fraction, Interval, Kind, OptionalBounds
from fedlib.core.protocol import Flow
from fedlib.core.registry import ALIGNED, LEAVE_ONE_OUT, innermost
from fedlib.evaluation.class_scores import ClassScores
from fedlib.evaluation.clustering import ClusterScores, FederatedClusteringScore
from fedlib.evaluation.messages import MAX_BINS, DescribeClasses
from fedlib.evaluation.predictions import FederatedEvaluation
from fedlib.evaluation.regression_scores import FederatedRegressionScore, NumberScores
from fedlib.evaluation.reported import Scored
from fedlib.protection.estimator import (
    ProtectedFederated,
    check_nothing_lacks,
    is_protected,
    mask_clients,
)
from fedlib.protection.privacy import split_guarantee
from fedlib.sites.leave_one_out.flow import (
    MIN_SITES,
    LeftOutClient,
    NobodyAnswers,
    SiteScores,
    leave_one_site_out,
)

SUMS_PER_FOLD = 2**24  # the identifiers of masked sums of one fold


class LeaveOneSiteOut(Federated):
    """Validation over sites: each site scores a model that was fitted without it.

    The folds are one run with one ledger, over any transport. It is the network's counterpart of
    `fedlib.evaluation.selection.cross_validate_sites`.

    Attributes
    ----------
    model_ : SiteScores
        All scores.
    sites_ : tuple of str
        The sites that have scores; empty if there is one score of all sites together.
    scores_ : dict of str to array (n_sites,)
        The scores of each site by name: those of `FederatedEvaluation` for classes, of
        `FederatedRegressionScore` for numbers, and of `FederatedClusteringScore` for clusters.
    intervals_ : dict of str to array (n_sites, 2)
        The lower and the upper end of each score's interval, which is wide with noise; see there.
    ledger_ : Ledger
        The messages of the run and their sizes.

    Raises
    ------
    ValueError
        When a parameter is out of range, the protocol has no ``predict`` for rows of one site, or
        there are fewer than three sites.

    See Also
    --------
    fedlib.evaluation.selection.cross_validate_sites : scikit-learn's splitters in one process.

    Notes
    -----
    A part is that of the protocol's client. Weights of rows count in the folds and not in scores.

    *Privacy.* With ``epsilon`` of the `estimator`, the whole run is (epsilon, delta)-differentially
    private for each row. Of n sites, a row takes part in n - 1 folds, and is scored once. So the
    scores cost `score_fraction` of epsilon and delta. The rest is divided by all requests of n - 1
    folds, for pure noise equally by epsilon, with delta by rho.

    *Masks.* ``secure=True`` needs ``epsilon``: two folds have other members, so their sums differ
    by those of single sites, and only noise hides these. Then one score of the rows of all sites
    is known. It takes four sites, because a masked sum needs more than two thirds of all, and a
    fold has one less. A site whose policy demands the ``same_members`` declines from the second
    fold on.

    *Disclosure.* That of n runs of the protocol, and of the scores. In the clear, the server sees
    the replies of single sites anyway, and no more by the differences of folds. Each site gets the
    model of all others. A site's rule ``min_count`` holds for all folds and scores of the run
    together, so that it may decline a later fold; ``min_clients`` counts the sites of a fold.

    *Lost sites.* They leave all later folds. There is no score of a site that is lost or passive,
    that has no rows, or without which the rows of the others cannot be fitted. A warning names it,
    and the others have theirs.

    *Cost.* That of n runs with n - 1 sites each.

    Examples
    --------
    The rows of one site have the classes in reverse, so the model of the others is always wrong.

    >>> from fedlib import FederatedXGBClassifier, LeaveOneSiteOut
    >>> X, y = [[x] for x in range(8)], 4 * [0] + 4 * [1]
    >>> parts = {"A": (X, y), "B": (X, y), "C": (X, y), "D": (X, y[::-1])}
    >>> model = LeaveOneSiteOut(FederatedXGBClassifier(2)).fit(parts)
    >>> model.to_frame()["accuracy"].to_dict()
    {'A': 1.0, 'B': 1.0, 'C': 1.0, 'D': 0.0}
    """

    client_class = LeftOutClient
    has_labels = False
    estimator: Annotated[
        Federated,
        Federated,
        Kind("Federated"),
        """
        The estimator of a protocol whose clients hold different rows of the same columns, or a
        `FederatedPipeline`.
        """,
    ]
    _: KW_ONLY
    n_bins: Annotated[
        int,
        Interval(Integral, 1, MAX_BINS, closed="both"),
        """
        For classes, the count of bins in which probabilities are counted; see
        `FederatedEvaluation`.
        """,
    ] = 1000
    score_fraction: Annotated[
        Fraction,
        """
        With an estimator with ``epsilon``: the fraction of epsilon and delta for the scores, above
        0; the folds have the rest.
        """,
    ] = 0.1
    target_bounds: Annotated[
        OptionalBounds,
        """
        With an estimator of numbers that has ``epsilon``: the smallest and the largest number, on
        which the sites have agreed, as one column with two rows or by its name. Numbers and
        predictions are clipped to them in scores. By default the limits of the target in the
        schema.
        """,
    ] = None

    @property
    def name(self) -> str:  # type: ignore[override]
        """The protocol's name: ``leave-one-site-out/`` and that of the estimator's protocol."""
        return f"{LEAVE_ONE_OUT}{self.estimator.name}"

    def _flow(self) -> Flow[SiteScores]:
        inner: Any = innermost(self.estimator)
        check_validated(type(inner))
        if self.estimator.name.startswith((ALIGNED, LEAVE_ONE_OUT)):
            raise ValueError(f"estimator must be no {type(self.estimator).__name__}")
        check_nothing_lacks(inner, self._lacking())
        self._fold(0, MIN_SITES).protocol()  # reports bad parameters before any message
        if reason := getattr(inner, "_unscored", ""):
            raise ValueError(f"the scores of sites are those of numbers, such as R², {reason}")
        if is_protected(inner):
            self._scorer(None, MIN_SITES).protocol()
        together = bool(getattr(inner, "secure", False))
        fold = lambda number, n_sites: self._fold(number, n_sites).protocol()  # noqa: E731
        return leave_one_site_out(fold, self._fitted, self._scores, together)

    def _lacking(self) -> list[str]:
        """Return the parameters that a protected run still needs, each with its remedy."""
        inner: Any = innermost(self.estimator)
        roles, lacking = roles_of(inner.client_class), []
        if not is_protected(inner):
            return []
        if inner.epsilon is None:
            lacking.append(
                "epsilon, because two folds have other members, and sums without noise would differ"
                " by those of single sites (got epsilon=None)"
            )
        elif not self.score_fraction:
            lacking.append("score_fraction above 0, because the scores need noise, too (got 0.0)")
        if "target" not in roles:
            lacking.append(
                "an estimator of classes or numbers, because scores of clusters have no noise"
                f" (got {type(inner).__name__})"
            )
        elif not hasattr(type(inner), "predict_proba") and self._target_bounds() is None:
            lacking.append(
                "target_bounds, the smallest and the largest number, or a schema with the limits of"
                " the target (got target_bounds=None)"
            )
        return lacking

    def _target_bounds(self) -> Any:
        """Return the limits of the numbers, if they are known."""
        schema = getattr(self.estimator, "schema", None)
        if self.target_bounds is None and schema is not None and schema.target in schema.limits:
            return np.reshape(schema.limits[schema.target], (2, 1))
        return self.target_bounds

    def _fold(self, number: int, n_sites: int) -> Federated:
        """Return the estimator of a fold, with its part of the budget."""
        estimator = clone(self.estimator)  # which continues no model that knows the site
        inner = innermost(estimator)
        if isinstance(inner, ProtectedFederated):
            self._spend(inner, scores=False)
            inner.n_runs, inner.first_sum = n_sites - 1, number * SUMS_PER_FOLD + 1
        return estimator

    def _spend(self, estimator: Any, *, scores: bool) -> None:
        """Set epsilon and delta of an estimator to those of the scores, or to what remains."""
        given: Any = innermost(self.estimator)
        if given.epsilon is not None:
            of_scores, rest = split_guarantee(given.epsilon, given.delta, self.score_fraction)
            estimator.set_params(**of_scores if scores else rest)

    def _fitted(self, model: Any) -> Federated:
        """Return the fitted estimator for the model of a fold."""
        fitted = clone(self.estimator)
        fitted._set_model(model)
        return fitted

    def _scorer(self, fitted: Any, n_sites: int, site: str = "") -> Federated:
        """Return the estimator of the scores, for the fitted estimator of a fold and a site."""
        inner: Any = innermost(self.estimator)
        if "target" not in roles_of(inner.client_class):
            return FederatedClusteringScore()
        scorer: Scored
        if hasattr(type(inner), "predict_proba"):
            classes = self._agreed_classes() if fitted is None else fitted.classes_.tolist()
            scorer = FederatedEvaluation(n_bins=self.n_bins, classes=classes)
        else:
            bounds = self._target_bounds() if is_protected(inner) else None
            scorer = FederatedRegressionScore(bounds=bounds)
        scorer.set_params(secure=inner.secure)
        self._spend(scorer, scores=True)
        scorer.first_sum = n_sites * SUMS_PER_FOLD + 1
        scorer.of_site = f"site {site!r}: " if site else ""
        return scorer

    def _agreed_classes(self) -> Any:
        """Return the classes on which the sites have agreed; None if there are none."""
        classes = getattr(innermost(self.estimator), "classes", None)
        schema = getattr(self.estimator, "schema", None)
        return schema.classes if classes is None and schema is not None else classes

    def _scores(self, fitted: Any, n_sites: int, site: str) -> Flow[Any]:
        """Return the flow of the scores of the rows of one site, or of all of them."""
        if hasattr(fitted, "classes_") and not is_protected(innermost(self.estimator)):
            replies = yield DescribeClasses()
            known = fitted.classes_.tolist()
            found = {one for reply in replies.values() for one in reply.classes}
            if unknown := found.difference(known):
                raise NobodyAnswers(f"its class {listed(sorted(unknown, key=str))} is new")
        return (yield from self._scorer(fitted, n_sites, site).protocol())

    def _client_factory(
        self, options: Sequence[dict[str, Any]]
    ) -> tuple[Any, Sequence[dict[str, Any]]]:
        make: Any
        make, given = self.estimator._client_factory(options)
        is_class = isinstance(make, type)  # else it applies a schema first
        trained = make if is_class else make.client_class
        own = LeftOutClient if is_class else replace(make, client_class=LeftOutClient)
        return own, [{**one, LeftOutClient.wraps: trained} for one in given]

    def _client_options(self, n_parts: int) -> Sequence[dict[str, Any]]:
        return self.estimator._client_options(n_parts)

    def _column_names(self) -> tuple[str, ...]:
        return self.estimator._column_names()

    def _make_clients(self, *arguments: Any) -> dict[str, Client]:
        clients = super()._make_clients(*arguments)
        secure = getattr(innermost(self.estimator), "secure", False)
        return mask_clients(clients) if secure else clients

    def _check_clients(self, clients: dict[str, Any]) -> None:
        for client in clients.values():
            client.trained.passive = client.passive
        self.estimator._check_clients({name: one.trained for name, one in clients.items()})

    def _set_model(self, model: SiteScores) -> None:
        super()._set_model(model)
        self.sites_ = model.sites
        of_sites = [_reported(one) for one in model.scores]
        self.scores_ = {
            name: np.array([one.scores_[name] for one in of_sites]) for name in of_sites[0].scores_
        }
        self.intervals_ = {
            name: np.array([_ends(one, name) for one in of_sites]) for name in self.scores_
        }

    def to_frame(self) -> pd.DataFrame:
        """Return the scores, one row per site, or one row of all sites.

        With an epsilon, the ends of the interval of each score follow.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        columns = dict(self.scores_)
        if getattr(innermost(self.estimator), "epsilon", None) is not None:
            for name, ends in self.intervals_.items():
                columns |= {f"{name} (low)": ends[:, 0], f"{name} (high)": ends[:, 1]}
        return pd.DataFrame(columns, index=[*(self.sites_ or ["all sites"])])


def check_validated(estimator: type[Federated]) -> None:
    """Raise ValueError when a model cannot predict the rows of one site that had no part in it."""
    if not estimator.same_columns or not hasattr(estimator, "predict"):
        raise ValueError(
            "estimator must predict rows of one site, like FederatedXGBClassifier or a"
            f" FederatedPipeline of it; got {estimator.__name__}"
        )


def _reported(score: Any) -> Any:
    """Return the estimator of the scores with these ones."""
    kinds: dict[type, type[Federated]] = {
        ClassScores: FederatedEvaluation,
        NumberScores: FederatedRegressionScore,
        ClusterScores: FederatedClusteringScore,
    }
    scorer = kinds[type(score)]()
    scorer._set_model(score)
    return scorer


def _ends(scorer: Any, name: str) -> tuple[float, float]:
    """Return the interval of a score; the score itself if it has none."""
    score = scorer.scores_[name]
    ends: tuple[float, float] = getattr(scorer, "intervals_", {}).get(name, (score, score))
    return ends
