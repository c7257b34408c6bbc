"""The server of federated boosting: the agreement before the first tree, and the flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedlib.boosting.categories import agree_on_categories, listed
from fedlib.boosting.cuts import Cuts, agree_on_cuts
from fedlib.boosting.data import check_columns, check_precision
from fedlib.boosting.descriptions import Described, describe
from fedlib.boosting.first_scores import FIRST_SCORES
from fedlib.boosting.histograms import HistogramGrower, LossguideGrower
from fedlib.boosting.label_sums import LabelSums
from fedlib.boosting.messages import BeginBoosting, KeepTrees, Levels, StartTrees
from fedlib.boosting.objectives import OBJECTIVES, n_outputs_of, options_of, unit_bits
from fedlib.boosting.scores import Validation
from fedlib.boosting.secure import (
    SECURE_GROWERS,
    PrivateGrower,
    describe_privately,
    describe_securely,
)
from fedlib.boosting.server_state import DeclaredRows, Training, leaves
from fedlib.boosting.settings import RoundReport, Settings
from fedlib.boosting.tree_growers import Grower, TopSplits, UnionSplits
from fedlib.boosting.trees import BoostedTrees, Tree, stack_sets
from fedlib.core.column_names import check_names
from fedlib.core.protocol import Flow
from fedlib.protection.sums import NoisySums

ROOM = 2.0**8  # for sums that grow from those at base margins
NO_CUTS = Cuts(np.zeros(1, np.int64), np.empty(0, np.float32))
GROWERS: dict[str, type[Grower]] = {
    "top_splits": TopSplits,
    "union": UnionSplits,
    "histogram": HistogramGrower,
    "lossguide": LossguideGrower,
}


def boosting(settings: Settings, start: BoostedTrees | None = None) -> Flow[BoostedTrees]:
    """Return the server flow; with ``start``, it continues a model.

    Examples
    --------
    >>> from fedlib import FederatedXGBClassifier
    >>> flow = FederatedXGBClassifier(n_trees=1, max_depth=1).protocol()
    >>> next(flow)
    DescribeTraining(learning_rate=0.3)
    """
    if settings.agreed is not None:  # what follows from the schema is an error before any message
        texts, names = settings.agreed.texts, settings.agreed.names
        settings = settings.constrained(len(names), names)
        _check_texts(settings, start, texts, names)
    return _boosting(settings, start)


def _boosting(settings: Settings, start: BoostedTrees | None) -> Flow[BoostedTrees]:
    """Train with settings that agree with the schema, if there is one."""
    training = yield from _agree_on_training(settings, start)
    settings = training.settings  # with the objective
    kind = "lossguide" if settings.grow_policy == "lossguide" else settings.method
    grower = _growers(settings)[kind](training)
    trees: list[Tree] = [] if start is None else list(start.trees)
    n_started = 0 if start is None else start.n_rounds
    if start is not None:
        started = yield _with_trees(StartTrees, start.trees, training)
        training.remove(started.lost)
        grower.continue_from(start.trees)
    ended_by = "n_trees"
    validation = Validation(
        settings.eval_metric or (), settings.early_stopping_rounds, start, settings.eval_sets
    )
    for _ in range(n_started, settings.n_trees):
        grown = yield from grower.grow()
        if grown is None:
            ended_by = "tol"
            break
        trees += grown.trees
        if validation.metrics:
            yield from validation.score(grower)
            if validation.is_over:
                ended_by = "early_stopping_rounds"
                break
        if settings.callback is not None and settings.callback(_report(training, validation)):
            ended_by = "callback"
            break
    if start is not None and len(trees) == len(start.trees):  # nothing was left to add
        yield _with_trees(KeepTrees, trees, training)
        return start
    trees = validation.kept(trees, training.n_outputs)
    yield _with_trees(KeepTrees, trees, training)
    described = training.described
    return BoostedTrees(
        trees=trees,
        classes=described.classes,
        base_scores=training.base_scores,
        base_margins=training.base_margins,
        learning_rate=training.learning_rate(0),
        n_features=described.n_features,
        features=described.features,
        losses=training.losses,
        objective=settings.objective,
        parameter=settings.parameter,
        metrics=validation.metrics,
        evaluations=validation.results,
        evaluation_errors=validation.errors,
        eval_sets=validation.eval_sets,
        best_round=validation.best_round if validation.metrics else None,
        levels=training.levels,
        seed=settings.seed,
        ended_by=ended_by,
        has_noise=isinstance(settings.aggregation, NoisySums),
        has_margins=described.first_sizes is not None,
        withheld=training.withheld,
        xgboost_rules=settings.xgboost_rules,
    )


def _report(training: Training, validation: Validation) -> RoundReport:
    """Return what the callback of a run receives after a round."""
    settings, n_rounds, losses = training.settings, training.n_rounds, training.losses
    return RoundReport(
        n_rounds,
        settings.n_trees,
        training.learning_rate(n_rounds - 1),
        losses[-1] if losses else None,
        validation.latest,
    )


def _growers(settings: Settings) -> Mapping[str, type[Grower]]:
    """Return the growers by method and policy."""
    if isinstance(settings.aggregation, NoisySums):
        return {"histogram": PrivateGrower}
    return SECURE_GROWERS if settings.aggregation.masked else GROWERS


def _agree_on_training(settings: Settings, start: BoostedTrees | None) -> Flow[Training]:
    """Agree on everything that must be fixed before the first tree."""
    if isinstance(settings.aggregation, NoisySums):
        described = yield from describe_privately(settings, settings.aggregation)
    elif settings.aggregation.masked:
        described = yield from describe_securely(settings)
    else:
        described = yield from describe(settings)
        if settings.by_classes:
            settings = settings.decided(len(described.classes))
    if start is not None and not described.features:
        described = replace(described, features=start.features)
    sums, n_features = described.sums, described.n_features
    if settings.agreed is None:
        settings = settings.constrained(n_features, described.features)
        _check_texts(settings, start, described.texts, described.features)
    elif n_features != len(settings.agreed.names):
        raise ValueError(
            f"the clients' rows must have the {len(settings.agreed.names)} features of the schema;"
            f" got {n_features}"
        )
    objective, parameter = OBJECTIVES[settings.objective], settings.parameter
    n_outputs = n_outputs_of(settings.objective, parameter, len(described.classes))
    check_columns(described.n_margins, n_outputs)  # before the next step, so that a liar is found
    _check_start(start, settings, described)
    scores: Sequence[Any]
    if start is not None:
        scores = start.base_scores
    else:
        if objective.estimate in FIRST_SCORES:  # a liar is found before the steps for the scores
            pooled = LabelSums.of_all(list(sums.values()))
            _bits(settings, described, [pooled.total / max(pooled.weight, 1.0)])
        scores = yield from _base_scores(settings, described)
    margins = objective.link(scores).tolist()
    bits = _bits(settings, described, margins)
    cuts, levels = yield from _agree_on_bins(settings, start, described)
    training = Training(
        settings=settings,
        described=described,
        base_scores=[float(score) for score in scores],
        base_margins=margins,
        bits=bits,
        weights=described.weights | dict.fromkeys(described.replies.declined, 0.0),
        declared={
            name: DeclaredRows(
                n_rows,
                sums[name],
                objective,
                parameter,
                n_outputs=len(margins),
                is_sampled=settings.subsample < 1,
            )
            for name, n_rows in described.n_rows.items()
        },
        cuts=cuts,
        levels=levels,
    )
    started = yield _begin_boosting(training)
    training.remove(started.lost)
    return training


def _bits(settings: Settings, described: Described, margins: Sequence[float]) -> int:
    """Return the ``bits`` of the unit of gradients."""
    if isinstance(settings.aggregation, NoisySums):
        assert settings.aggregation.sensitivity is not None  # known after `describe_privately`
        return settings.aggregation.sensitivity.digits
    objective, parameter = OBJECTIVES[settings.objective], settings.parameter
    first = described.first_sizes or {}
    sizes = {
        name: max(objective.total(part, margins, parameter), ROOM * first.get(name, 0.0))
        for name, part in described.sums.items()
    }
    bits = unit_bits(sum(sizes.values()))
    check_precision(sizes, described.weights, bits)
    return bits


def _agree_on_bins(
    settings: Settings, start: BoostedTrees | None, described: Described
) -> Flow[tuple[Cuts, Levels]]:
    """Agree on the bins of all features and on their categories."""
    agreed = settings.agreed
    levels: Levels = () if start is None else start.levels
    if agreed is not None:
        levels = agreed.levels
    if settings.method != "histogram":
        return NO_CUTS, levels
    if settings.bounds is not None:
        if (n_bounded := len(settings.bounds.offsets) - 1) != described.n_features:
            raise ValueError(
                f"bounds must have the {described.n_features} features of the clients'"
                f" rows, got {n_bounded}"
            )
        return settings.bounds, levels
    if agreed is not None:
        n_categories = agreed.n_categories
    else:
        levels, n_categories = yield from agree_on_categories(
            described.texts, described.replies, settings.min_category_count, levels
        )
    cuts = yield from agree_on_cuts(
        described.n_rows,
        described.n_features,
        settings.max_bin,
        n_categories,
        described.own_weights,
    )
    return cuts, levels


def _check_texts(
    settings: Settings, start: BoostedTrees | None, texts: Sequence[int], names: Sequence[str]
) -> None:
    """Raise ValueError when a run cannot use features that contain text."""
    if texts and settings.method != "histogram":
        raise ValueError(
            f"features {listed(texts, names)} contain text, which needs method='histogram'; got"
            f" method={settings.method!r}"
        )
    if constrained := [f for f in texts if any(settings.monotone_constraints[f : f + 1])]:
        raise ValueError(
            f"monotone_constraints must be 0 for features {listed(constrained, names)}, which"
            " contain text"
        )
    known = {f for f, levels in enumerate(start.levels if start else ()) if levels is not None}
    if settings.bounds is not None and settings.agreed is None and (texts or known):
        raise ValueError(
            f"bounds needs features of numbers; {listed(texts or sorted(known), names)}"
            " contain text; a schema with their categories allows them"
        )
    if start is not None and (more := sorted(set(texts) - known)):
        raise ValueError(
            f"features {listed(more, names)} must contain numbers, as in the model; got text"
        )
    if settings.agreed is not None and (fewer := sorted(known - set(texts))):
        raise ValueError(
            f"features {listed(fewer, names)} must contain text, as in the model; got numbers"
        )


def _begin_boosting(training: Training) -> BeginBoosting:
    """Return the first request of the training, with the settings that rows need."""
    known, settings = set(BeginBoosting.__struct_fields__), training.settings
    of_rows = {name: value for name, value in vars(settings).items() if name in known}
    of_rows |= {
        "classes": tuple(training.described.classes),
        "bits": training.bits,
        "offsets": training.cuts.offsets,
        "thresholds": training.cuts.thresholds,
        "parameter": training.parameter,
        "seed": settings.seed if settings.subsample < 1 else 0,
        "levels": training.levels,
        **_margin_fields(training),
    }
    return BeginBoosting(**of_rows)


def _margin_fields(training: Training) -> dict[str, Any]:
    """Return the fields of a message with the margins before the first tree: one or several."""
    margins = training.base_margins
    if len(margins) == 1:
        return {"base_margin": margins[0]}
    return {"base_margin": 0.0, "base_margins": tuple(margins)}


def _base_scores(settings: Settings, described: Described) -> Flow[Sequence[Any]]:
    """Return the predictions before the first tree, one per output."""
    objective = OBJECTIVES[settings.objective]
    if settings.base_score is not None:
        n_outputs = n_outputs_of(settings.objective, settings.parameter, len(described.classes))
        return [np.float32(settings.base_score)] * max(n_outputs, 1)
    scores: Sequence[Any]
    if objective.estimate in FIRST_SCORES:
        scores = yield from FIRST_SCORES[objective.estimate](settings, described)
    else:
        sums = LabelSums.of_all(list(described.sums.values()))
        scores = objective.base_scores(sums, settings.scale_pos_weight != 1)
    if not np.isfinite(objective.link(scores)).all():
        raise ValueError(
            f"the rows have no initial prediction for objective={settings.objective!r}: it would be"
            f" {scores[0]}; give a base_score"
        )
    return scores


def _check_start(start: BoostedTrees | None, settings: Settings, described: Described) -> None:
    """Raise ValueError when a run cannot continue a model."""
    if start is None:
        return
    check_names(described.features, start.features)
    before = options_of(start.objective, start.parameter)
    options = options_of(settings.objective, settings.parameter)
    for what, of_model, of_run in (
        ("objective", start.objective, settings.objective),
        *((name, before.get(name), value) for name, value in options.items()),
        ("classes", list(start.classes), list(described.classes)),
        ("number of features", start.n_features, described.n_features),
    ):
        if of_model != of_run:
            raise ValueError(f"the {what} must be that of the model, {of_model!r}; got {of_run!r}")
    if start.has_margins and described.first_sizes is None:
        raise ValueError("the rows need base_margin like those of the model; got none")


def _with_trees(request: type[KeepTrees], trees: Sequence[Tree], training: Training) -> KeepTrees:
    """Return a request that contains trees."""
    empty = leaves(0)
    sets = stack_sets([tree.right for tree in trees])
    return request(
        sizes=np.array([len(tree) for tree in trees], np.int64),
        feature=np.concatenate([empty.feature, *(tree.feature for tree in trees)]),
        threshold=np.concatenate([empty.threshold, *(tree.threshold for tree in trees)]),
        missing_left=np.concatenate([empty.missing_left, *(tree.missing_left for tree in trees)]),
        value=np.concatenate([np.empty(0, np.float32), *(tree.value for tree in trees)]),
        objective=training.settings.objective,
        levels=training.levels,
        right=sets.tobytes(),
        has_margins=training.described.first_sizes is not None,
        **_margin_fields(training),
    )
