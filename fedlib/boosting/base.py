"""The base class of the boosted estimators: their common parameters, attributes and methods."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedlib.boosting.categories import listed, read_table, unknown_categories
from fedlib.boosting.classes import Class
from fedlib.boosting.cuts import MAX_VALUE, bounded_cuts
from fedlib.boosting.data import (
    NO_MARGINS,
    agree_on_margins,
    check_largest_weight,
    check_margins,
    row_limit,
)
from fedlib.boosting.eval_sets import Constrained, Validated
from fedlib.boosting.export import Explained, Exported, from_booster
from fedlib.boosting.from_schema import agreed_features, problems_of
from fedlib.boosting.messages import MAX_WEIGHT
from fedlib.boosting.objectives import options_of
from fedlib.boosting.rules import NEWEST_RULES, RULES, RulesName
from fedlib.boosting.scores import METRICS
from fedlib.boosting.settings import RoundReport, Settings, rates_of
from fedlib.boosting.trees import BoostedTrees
from fedlib.core.aggregation import AgreedColumns
from fedlib.core.array_types import Floats32
from fedlib.core.client import Client
from fedlib.core.estimator import EXAMPLE_BOUNDS
from fedlib.core.parameters import (
    KW_ONLY,
    Fraction,
    Interval,
    Kind,
    OptionalBounds,
    OptionalPositiveInt,
    RandomSource,
    StrOptions,
)
from fedlib.core.protocol import Flow
from fedlib.core.search import Once

# Parameters that must have their defaults for the other methods.
HISTOGRAM_ONLY = (
    *("colsample_bytree", "colsample_bylevel", "colsample_bynode", "monotone_constraints"),
    *("interaction_constraints", "grow_policy", "max_leaves", "max_cat_to_onehot"),
    *("max_cat_threshold", "histograms", "bounds"),
)
NOT_SECURE: dict[str, Any] = {
    "validation_fraction": 0,
    "eval_metric": None,
    "eval_sets": None,
    "early_stopping_rounds": None,
}  # what sums over all clients need
NOT_PRIVATE: dict[str, Any] = {
    "tol": None,
    "grow_policy": "depthwise",
    "scale_pos_weight": 1.0,
    "subsample": 1.0,
    "warm_start": False,
}  # what noise needs, too
# The parameters whose best values depend on whether sums have noise: by default without and with
# it. The page "How much accuracy does differential privacy cost?" measures how they were chosen.
DEFAULTS: dict[str, tuple[Any, Any]] = {
    "n_trees": (100, 10),
    "max_depth": (6, 2),
    "max_bin": (256, 4),
    "reg_lambda": (1.0, None),  # None: from the noise, see `fedlib.boosting.secure.penalty`
}
POISSON_STEP = 0.7  # XGBoost's default of max_delta_step for count:poisson
OF_OTHERS: dict[str, Any] = {
    "leaf": "all",
    "scale_pos_weight": 1.0,
    "max_gradient": 1.0,
    "max_target": MAX_WEIGHT,
}  # what an estimator without these parameters has


class Single(Interval):
    """The range of a parameter that is a float32 number in a run, as in XGBoost."""


# The types of parameters with their ranges, to which each estimator adds its text.
Method = Annotated[
    Literal["top_splits", "union", "histogram"], StrOptions({"top_splits", "union", "histogram"})
]
CandidateCount = Annotated[int, Interval(Integral, 1, 2**16, closed="both")]
Share = Annotated[float, Interval(Real, 0, 1, closed="right")]
Penalty = Annotated[float, Single(Real, 0, 1e30, closed="both")]
OptionalPenalty = Annotated[float | None, Single(Real, 0, 1e30, closed="both"), None]
AnyNumber = Annotated[float | None, Interval(Real, None, None, closed="neither"), None]
RowLimit = Annotated[float | None, Interval(Real, 0, MAX_WEIGHT, closed="right"), None]
Metrics = Annotated[
    str | list[str] | None, StrOptions(set(METRICS)), list, None, Kind("str or list of str")
]
Levels = Annotated[
    float | ArrayLike | None,
    Interval(Real, 0, 1, closed="both"),
    "array-like",
    list,
    None,
    Kind("float or array-like (n_levels,) of float"),
]
EXAMPLE_OF_SUMS = {"method": "histogram", "max_bin": 8, "tol": None, "bounds": EXAMPLE_BOUNDS}


class Boosted(Exported, Explained, Validated, Constrained):
    """Base class of `FederatedXGBClassifier` and `FederatedXGBRegressor`."""

    former_names: ClassVar[dict[str, str]] = {"feature_bounds": "bounds"}
    former_values: ClassVar[dict[str, Any]] = {"xgboost_rules": "3.2"}
    n_trees: Annotated[
        OptionalPositiveInt,
        "The maximum count of trees, at least 1; by default 100, and 10 with `epsilon`.",
    ] = None
    _: KW_ONLY
    max_depth: Annotated[
        int | None,
        Interval(Integral, 0, 30, closed="both"),
        None,
        """
        The maximum count of splits on the path to a leaf, in 1..30; 0 with ``max_leaves`` and
        ``grow_policy="lossguide"``: no limit. By default 6, and 2 with `epsilon`.
        """,
    ] = None
    learning_rate: Annotated[
        float | ArrayLike | Callable[[int], float],
        Interval(Real, 0, 1, closed="right"),
        "array-like",
        list,
        callable,
        Kind("float, array-like (n_trees or more,) of float, or callable"),
        """
        The factor on the weight of a leaf, above 0 and at most 1. A client may prefer another one;
        the run uses the clients' mean, weighted by rows. One per round, or a function of the index
        of the round from 0, is as XGBoost's LearningRateScheduler, whose rates begin with the
        second round: then clients' preferences do not count. Only the first rate is sent to
        clients; the server multiplies the weights of leaves itself.
        """,
    ] = 0.3
    max_bin: Annotated[
        int | None,
        Interval(Integral, 2, 2**15, closed="both"),
        None,
        """
        The maximum count of bins per feature, in 2..32768; by default 256, and 4 with `epsilon`.
        Used by ``"histogram"`` only.
        """,
    ] = None
    reg_alpha: Annotated[
        Penalty,
        "The L1 penalty on the weight of a leaf, in 0..1e30.",
    ] = 0.0
    random_state: Annotated[
        RandomSource,
        "Draws the rows and the features.",
    ] = None
    colsample_bytree: Annotated[
        Share,
        """
        The fraction of the features, above 0 and at most 1, that the server draws for each tree, of
        these for each level, and of these for each node. XGBoost draws other features with the same
        seed. ``"histogram"`` only.
        """,
    ] = 1.0
    colsample_bylevel: Annotated[Share, ""] = 1.0
    colsample_bynode: Annotated[Share, ""] = 1.0
    grow_policy: Annotated[
        Literal["depthwise", "lossguide"],
        StrOptions({"depthwise", "lossguide"}),
        """
        ``"lossguide"`` splits the leaf with the largest gain first, which costs one exchange per
        split instead of one per level. ``"histogram"`` only.
        """,
    ] = "depthwise"
    max_leaves: Annotated[
        int,
        Interval(Integral, 0, 2**20, closed="both"),
        """
        The maximum count of leaves of a tree, in 0..2**20; 0: no limit. ``"histogram"`` only.
        """,
    ] = 0
    max_cat_to_onehot: Annotated[
        int,
        Interval(Integral, 1, 2**31 - 1, closed="both"),
        """
        A feature with fewer categories is split into one category and the others, at least 1.
        ``"histogram"`` only.
        """,
    ] = 4
    max_cat_threshold: Annotated[
        int,
        Interval(Integral, 1, 2**31 - 1, closed="both"),
        """
        For a feature with more categories, one side of a split has fewer than this count of them,
        at least 1. ``"histogram"`` only.
        """,
    ] = 64
    min_category_count: Annotated[
        int,
        Interval(Integral, 1, 2**40, closed="both"),
        """
        A client withholds the names of categories with fewer rows, at least 1. Not used with a
        schema, which has the categories.
        """,
    ] = 5
    histograms: Annotated[
        Literal["dense", "packed"],
        StrOptions({"dense", "packed"}),
        """
        How histograms travel. ``"packed"`` leaves out empty bins and sends integers as wide as they
        need to be. ``"dense"`` sends all, which saves time where bytes cost nothing, as in one
        process; the trees are the same. Sums with masks or noise are dense. ``"histogram"`` only.
        """,
    ] = "packed"
    bounds: Annotated[
        OptionalBounds,
        """
        The lower and the upper bound of each feature, on which the clients agree before the run.
        The range between them is divided into ``max_bin`` bins of equal width, the outer of which
        also contain the values beyond. By default the bins follow from the data, so that they have
        about equally many rows, or equal sums of weights. A feature of text has no bounds, but a
        bin per category of the schema. ``"histogram"`` only.
        """,
    ] = None
    max_weight: Annotated[
        RowLimit,
        """
        For ``secure=True``: the largest weight of a row, on which the clients agree before the run,
        above 0 and at most 2**40. By default the maximum that the `schema` has for the column of
        weights, or else 1. Larger weights are replaced by it.
        """,
    ] = None
    callback: Annotated[
        Callable[[RoundReport], Any] | None,
        callable,
        None,
        """
        A function that the server calls after each round with a
        `fedlib.boosting.settings.RoundReport`, such as for a progress bar. If it returns True, the
        run ends after this round. Nothing crosses the network but this end. Not for the command
        line, and not stored with a model.
        """,
    ] = None
    xgboost_rules: Annotated[
        RulesName,
        StrOptions(set(RULES)),
        """
        The release line of XGBoost whose rules the trees follow at all sites, whichever release
        they have installed; `fedlib.boosting.rules` says what differs. A run that continues a
        model needs the rules of the model.
        """,
    ] = NEWEST_RULES
    delta: Annotated[
        Fraction,
        """
        The second parameter of the guarantee, at least 0 and below 1. With a small positive value,
        such as 1e-6, the noise is Gaussian and smaller over several requests.
        """,
    ] = 0.0
    objective: Any
    method: str
    max_delta_step: float | None
    subsample: float
    eval_metric: str | list[str] | None
    warm_start: bool

    def protocol(self) -> Flow[Any]:
        if not callable(self.callback):
            return super().protocol()
        once = copy.copy(self)
        once.callback = Once(self.callback, "n_rounds")
        return super(Boosted, once).protocol()

    @property
    def are_summed(self) -> bool:
        """Whether the server uses sums over all clients only: secure ones, or ones with noise."""
        return self.secure or self.epsilon is not None

    def _settings(self, **others: Any) -> Settings:
        """Return the settings of a run; ``others`` are those that do not follow from parameters."""
        self._check_growth()
        given = {name: self._default(name) for name in self._parameter_constraints}
        metrics: Any = self.eval_metric
        n_trees = given["n_trees"]
        start: BoostedTrees | None = self._start
        seed = self._seed(start, n_trees)
        agreed = agreed_features(self.schema, self.are_summed, start)
        classes, max_weight = self._given_classes(), row_limit(self, "weight")
        rates = rates_of(self.learning_rate, n_trees)
        n_requests = n_trees * given["max_depth"]  # one for histograms per level of each tree
        bounds, cuts = None, None
        if self.are_summed or self.bounds is not None:
            bounds = self._bounds(MAX_VALUE) if agreed is None else agreed.bounds(self.bounds)
        aggregation = self._aggregation(n_requests, bounds)
        if agreed is not None:
            aggregation.features = agreed.names
        constraints, eval_sets = self._constraints(), self._eval_sets()
        if bounds is not None:
            n_categories = None if agreed is None else agreed.n_categories
            cuts = bounded_cuts(bounds.limits, given["max_bin"], n_categories)
        if metrics is not None:
            metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        known = {
            **OF_OTHERS,
            **given,
            "objective": self.objective or "binary:logistic",
            "by_classes": self.objective is None,
            "learning_rate": rates[0] if rates else self.learning_rate,
            "learning_rates": rates,
            "constraints": constraints,
            "monotone_constraints": (),  # of each feature, see `Settings.constrained`
            "interaction_constraints": (),
            "eval_metric": metrics,
            "eval_sets": eval_sets,
            "seed": seed,
            "aggregation": aggregation,
            "bounds": cuts,
            "agreed": agreed,
            "classes": classes,
            "max_weight": max_weight,
        }
        settings = Settings(**known | others)
        if self.objective is not None:
            return settings.decided()
        try:
            settings.decided(2)
        except ValueError as error:  # before any message, if no count of classes fits
            try:
                settings.decided(3)
            except ValueError:
                raise error from None
        return settings

    def _seed(self, start: BoostedTrees | None, n_trees: int) -> int:
        """Return the seed of a run, that of the model which it continues if there is one."""
        fractions = (self.colsample_bytree, self.colsample_bylevel, self.colsample_bynode)
        draws = min(self.subsample, *fractions) < 1 or self.validation_fraction > 0
        seed = int(check_random_state(self.random_state).randint(2**31 - 1)) if draws else 0
        if start is None:
            return seed
        if start.xgboost_rules != self.xgboost_rules:
            raise ValueError(
                f"xgboost_rules must be {start.xgboost_rules!r}, those of the model that"
                f" warm_start continues; got {self.xgboost_rules!r}"
            )
        if start.n_rounds > n_trees:
            raise ValueError(
                f"n_trees must be at least {start.n_rounds}, the rounds of the model that"
                f" warm_start continues; got {n_trees}"
            )
        return start.seed or seed

    def _default(self, name: str) -> Any:
        """Return the value of a parameter in a run: its default if it is None, in float32."""
        given = getattr(self, name)
        if given is None and name in DEFAULTS:
            given = DEFAULTS[name][self.epsilon is not None]
        if name == "max_delta_step" and given is None:
            given = POISSON_STEP if self.objective == "count:poisson" else 0.0
        single = any(isinstance(one, Single) for one in self._parameter_constraints[name])
        return float(np.float32(given)) if single and given is not None else given

    def _given_classes(self) -> tuple[Class, ...]:
        """Return the classes that are agreed; none if they follow from the data."""
        return ()

    def _check_growth(self) -> None:
        """Raise ValueError when a parameter does not apply to the others."""
        for name in HISTOGRAM_ONLY:
            value, default = getattr(self, name), getattr(type(self), name)
            if self.method != "histogram" and not np.array_equal(value, default):
                raise ValueError(f"{name} needs method='histogram'; got method={self.method!r}")
        if self.max_depth == 0 and (self.grow_policy != "lossguide" or not self.max_leaves):
            raise ValueError(
                "max_depth must be at least 1; 0 needs grow_policy='lossguide' and max_leaves"
            )

    def _lacking(self) -> list[str]:
        lacking = []
        if self.are_summed:
            if self.method != "histogram":
                lacking.append(
                    "method='histogram', because the server would see single clients' splits or"
                    f" values (got method={self.method!r})"
                )
            needed = NOT_SECURE | (NOT_PRIVATE if self.epsilon is not None else {})
            lacking += [
                f"{name}={value!r} (got {getattr(self, name)!r})"
                for name, value in needed.items()
                if getattr(self, name, value) != value
            ]
        return [*lacking, *super()._lacking()]

    def _lacking_in(self, schema: AgreedColumns) -> list[str]:
        without_classes = getattr(self, "classes", ()) is None
        problems = problems_of(schema.columns, self.are_summed, without_classes)
        if self.are_summed and any(one.role == "base_margin" for one in schema.columns):
            problems.append(f"no field with the role 'base_margin' ({NO_MARGINS})")
        return problems

    def _check_clients(self, clients: dict[str, Client]) -> None:
        super()._check_clients(clients)
        agree_on_margins({name: one for name, one in clients.items() if not one.passive})
        if self.are_summed:
            for name, client in clients.items():
                if client.base_margin is not None:  # type: ignore[attr-defined]
                    raise ValueError(f"parts[{name}]: {NO_MARGINS}")
        if not self.are_summed or self.schema is not None:
            return
        check_largest_weight(clients, row_limit(self, "weight"))
        texts = {f for client in clients.values() for f in client.table.texts}  # type: ignore[attr-defined]
        if texts:
            names = next((client.features for client in clients.values() if client.features), ())
            raise ValueError(
                f"sums over all clients need features of numbers; {listed(sorted(texts), names)}"
                " contain text; a schema with their categories allows them"
            )

    def _set_model(self, model: BoostedTrees) -> None:
        super()._set_model(model)
        self.trees_ = model.trees
        self.ended_by_ = model.ended_by
        self.losses_ = model.losses
        self.learning_rate_ = model.learning_rate
        self.n_features_in_ = model.n_features
        self._set_evaluations(model)
        self._set_names(model.features)

    @property
    def feature_importances_(self) -> Floats32:
        """The mean gain of the splits by each feature, as a fraction of the sum over all features.

        It is that of XGBoost's scikit-learn interface.
        """
        check_is_fitted(self, "model_")
        gains, n_splits = np.zeros(self.n_features_in_), np.zeros(self.n_features_in_)
        for tree in self.trees_:
            split = tree.feature >= 0
            np.add.at(gains, tree.feature[split], tree.gain[split].astype(np.float64))
            np.add.at(n_splits, tree.feature[split], 1)
        means = gains / np.maximum(n_splits, 1)
        return (means / (means.sum() or 1.0)).astype(np.float32)

    @classmethod
    def from_xgboost(cls, booster: Any, classes: Sequence[Any] | None = None) -> Self:
        """Return a fitted estimator with the trees of an `xgboost.Booster`.

        With ``warm_start``, a larger ``n_trees`` and `fit`, the clients add further trees.

        Parameters
        ----------
        booster : xgboost.Booster or xgboost.XGBModel
            Trees, also with dropout (DART), with an objective of this estimator and one target.
            After early stopping, the rounds up to the best one are taken, as XGBoost's estimators
            predict. If it splits categories, it must contain their names, as those trained on a
            DataFrame do. Further trees follow the rules of the installed release.
        classes : sequence, optional
            The classes that XGBoost's numbers 0, 1, … stand for, in ascending order; by default
            these numbers.

        Raises
        ------
        TypeError, ValueError
            When the booster is of another kind.
        """
        options = cls._parameter_constraints["objective"]
        objectives = set().union(*(c.options for c in options if isinstance(c, StrOptions)))
        model = from_booster(booster, classes, sorted(objectives))
        make: Callable[..., Self] = cls  # the subclass has defaults for all parameters
        estimator = make(
            n_trees=max(model.n_rounds, 1),
            objective=model.objective,
            xgboost_rules=model.xgboost_rules,
            warm_start=True,
            **options_of(model.objective, model.parameter),
        )
        estimator._set_model(model)
        return estimator

    def _margins(self, X: ArrayLike, base_margin: Any, staged: bool = False) -> Any:
        """Return the margins of new rows, or an iterator over them after each round."""
        rows = self._rows_and_margins(X, base_margin)
        return self.model_.staged_margins(*rows) if staged else self.model_.margins(*rows)

    def _rows_and_margins(self, X: ArrayLike, base_margin: Any) -> tuple[Floats32, Floats32 | None]:
        """Return new rows for the model, and their margins before the first tree if given."""
        rows = self._check_rows(X)
        model = self.model_
        if base_margin is not None:
            return rows, check_margins(base_margin, len(rows), model.n_outputs)
        if model.has_margins and len(rows):
            warnings.warn(
                "the model was fitted with base_margin, which new rows need, too; got None, so"
                f" that all start from the margin of base_score, {model.base_margins}",
                stacklevel=4,
            )
        return rows, None

    def _check_rows(self, X: ArrayLike) -> Floats32:
        """Return new rows for the model, with named columns in the order of `fit`."""
        X = self._like_fit(X)  # which needs a fitted model
        texts = [f for f, known in enumerate(self.model_.levels) if known is not None]
        table = read_table(X, texts, ensure_min_samples=0)
        if table.numbers.shape[1] != self.model_.n_features:
            return table.numbers  # the model raises the error
        if problem := table.problem_of(self.model_.levels):
            raise ValueError(problem)
        for problem in unknown_categories(table, self.model_.levels):
            warnings.warn(problem, stacklevel=4)
        return table.coded(self.model_.levels)
