"""Boosted trees as an XGBoost model."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from fedlib.boosting.categories import listed, spelled
from fedlib.boosting.objectives import OBJECTIVES, Parameter, options_of, parameter_of
from fedlib.boosting.rules import NEWEST_RULES, RulesName, rules_of
from fedlib.boosting.trees import BoostedTrees, Tree, children
from fedlib.core.array_types import Bytes, Floats32
from fedlib.core.targets import read_classes
from fedlib.core.wording import composed
from fedlib.kernels.buckets import BY_CATEGORY
from fedlib.kernels.histograms import BELOW_ALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from xgboost import Booster


NAME_CHARACTERS = str.maketrans("[]<", "()_") | {
    code: "_" for code in range(32) if chr(code) not in "\t\n\r"
}  # XGBoost rejects the first three, and its JSON has no escapes for these control characters
FEATURES, LEVELS = "fedlib_features", "fedlib_levels"  # attributes of a booster
NO_PARENT = 2**31 - 1


def to_booster(model: BoostedTrees, *, names: bool = True) -> Booster:
    """Return an `xgboost.Booster` with the same predictions as a model.

    Parameters
    ----------
    model : BoostedTrees
        XGBoost requires names of features that are distinct and contain no ``[``, ``]`` or ``<``.
        These characters become ``(``, ``)`` and ``_``, control characters ``_``, and names that are
        then equal get the feature's number appended. An attribute of the booster has the names
        before, and `from_booster` reads them.
    names : bool, default=True
        Whether the booster contains the names of the features and of the categories.

    Returns
    -------
    booster : xgboost.Booster

    Raises
    ------
    ImportError
        When xgboost is not installed.
    ValueError
        When its release does not have the objective, or predicts several quantiles otherwise.
    """
    import xgboost

    trees, n_outputs, n_classes = model.trees, model.n_outputs, len(model.classes)
    chosen = OBJECTIVES[model.objective]
    _check_release(model.objective, n_outputs, xgboost.__version__)
    # An empty model of the installed version supplies every entry that is not replaced below.
    labels = np.arange(n_outputs).astype(float) if n_outputs > 1 else np.ones(2)
    columns = ("label",) if chosen.n_columns == 1 else ("label_lower_bound", "label_upper_bound")
    zeros = np.zeros((len(labels), model.n_features))
    data = xgboost.DMatrix(zeros, **dict.fromkeys(columns, labels))
    options = {
        "objective": model.objective,
        "base_score": 0.5,
        "max_depth": 1,
        **options_of(model.objective, model.parameter),
        **({"num_class": n_outputs} if n_outputs > 1 and n_classes else {}),
    }
    document = json.loads(xgboost.train(options, data, 1).save_raw("json"))
    learner = document["learner"]
    parameters = learner["learner_model_param"]
    is_list = "[" in parameters["base_score"]  # the format depends on the version
    scores = ",".join(repr(float(score)) for score in model.base_scores)
    parameters["base_score"] = f"[{scores}]" if is_list else scores
    features = model.features if names else ()
    learner["feature_names"] = _accepted_names(features)
    if learner["feature_names"] != list(features):
        learner["attributes"][FEATURES] = json.dumps(features, ensure_ascii=False)
    n_typed = model.n_features if model.levels else len(features)
    levels = model.levels or (None,) * n_typed
    learner["feature_types"] = ["float" if known is None else "c" for known in levels][:n_typed]
    forest = learner["gradient_booster"]["model"]
    if model.levels and names:
        forest["cats"] = _cats_model(model.levels)
        if any(known is not None and not all(map(str.isascii, known)) for known in model.levels):
            learner["attributes"][LEVELS] = json.dumps(model.levels, ensure_ascii=False)
    forest["gbtree_model_param"]["num_trees"] = str(len(trees))
    forest["iteration_indptr"] = list(range(0, len(trees) + 1, n_outputs))
    forest["tree_info"] = [number % n_outputs for number in range(len(trees))]
    forest["trees"] = [
        _tree_model(tree, number, model.n_features) for number, tree in enumerate(trees)
    ]
    booster = xgboost.Booster()
    # XGBoost reads no escapes of JSON such as \\u00e9, so the text contains the letters themselves.
    booster.load_model(bytearray(json.dumps(document, ensure_ascii=False), "utf-8"))
    return booster


class Exported:
    """Base class of estimators whose model is one of XGBoost's."""

    model_: BoostedTrees

    def to_xgboost(self, *, names: bool = True) -> Booster:
        """Return an `xgboost.Booster` with the same predictions as this model.

        Use it to save, plot or explain the model with XGBoost's tools. Its gains and covers are
        those over all clients' rows.

        Parameters
        ----------
        names : bool, default=True
            Whether it contains the names of the features and of the categories. Without them, its
            features are f0, f1, … and a category is its place in ``model_.levels``; any other text
            is the next number. Tools that convert models, such as onnxmltools and treelite, need
            this form.

        Returns
        -------
        booster : xgboost.Booster
            For two classes, it predicts the second class's probability. XGBoost accepts no ``[``,
            ``]`` or ``<`` in a feature's name, so these characters become ``(``, ``)`` and ``_``,
            which ``from_xgboost`` undoes. It contains the names of the categories, so it takes a
            DataFrame with pandas categories. Any other category is an error since XGBoost 3.4; 3.2
            and 3.3 may predict such a row otherwise than this model.

        Raises
        ------
        ImportError
            When xgboost is not installed.

        Warns
        -----
        UserWarning
            When rows of the training may have categories that the model does not name, because
            clients withheld them as rare or the schema allows others.
        """
        check_is_fitted(self, "model_")
        if names and self.model_.withheld:
            warnings.warn(
                f"features {listed(self.model_.withheld, self.model_.features)} have categories"
                " that the model does not name: XGBoost 3.2 and 3.3 may predict such rows"
                " otherwise, and 3.4 refuses them. Export with names=False, and pass the place of a"
                " category in model_.levels, for any other the next number",
                stacklevel=2,
            )
        return to_booster(self.model_, names=names)


def from_booster(
    booster: Any,
    classes: Sequence[Any] | None = None,
    objectives: Collection[str] = tuple(OBJECTIVES),
) -> BoostedTrees:
    """Return the model of an `xgboost.Booster`, or of a fitted estimator of XGBoost.

    The trees that a run adds follow the rules of the release that wrote the booster, the installed
    one. The leaves of a booster with dropped trees (DART) are multiplied by the weights of their
    trees.

    Parameters
    ----------
    booster : xgboost.Booster or xgboost.XGBModel
        A model with trees and one of the objectives of this package. After early stopping, the
        rounds up to the best one are taken, as the estimators of XGBoost predict.
    classes : sequence, optional
        The classes that the numbers 0, 1, … stand for, in ascending order; by default these
        numbers.
    objectives : collection of str
        The objectives that are accepted.

    Raises
    ------
    TypeError
        When it is none of both.
    ValueError
        When the booster is of another kind.

    Warns
    -----
    UserWarning
        When the rules of the installed release are not known.
    """
    booster = _booster_of(booster)
    written = json.loads(booster.save_raw("json"), strict=False)
    document, release = written["learner"], ".".join(map(str, written["version"]))
    objective, parameters = document["objective"]["name"], document["learner_model_param"]
    name = document["gradient_booster"]["name"]
    if objective not in objectives or name not in ("gbtree", "dart"):
        raise ValueError(
            f"the booster must be a gbtree for one of {', '.join(objectives)}; got {name} for"
            f" {objective}: train it with booster='gbtree' and one of these objectives, or take the"
            " estimator of its objective"
        )
    chosen, n_targets = OBJECTIVES[objective], int(parameters.get("num_target", 1))
    if n_targets > 1 and not chosen.has_levels:
        raise ValueError(
            f"the booster must have one target, got {n_targets} targets: train one booster for each"
        )
    forest, weights = _forest_of(document["gradient_booster"])
    sizes = [int(tree["tree_param"]["size_leaf_vector"]) for tree in forest["trees"]]
    if (largest := max(sizes, default=1)) > 1:
        raise ValueError(
            f"the leaves of the booster must have one value, got {largest} values: train it with"
            " multi_strategy='one_output_per_tree'"
        )
    n_outputs = n_targets if chosen.has_levels else max(int(parameters["num_class"]), 1)
    _check_release(objective, n_outputs, release)
    n_parallel = int(forest["gbtree_model_param"]["num_parallel_tree"])
    if n_outputs > 1 < n_parallel:
        raise ValueError(
            "the booster must have one tree per class and round; got"
            f" num_parallel_tree={n_parallel}"
        )
    if (best := booster.attr("best_iteration")) is not None:
        del forest["trees"][(int(best) + 1) * n_outputs * n_parallel :]
    scores = [float(score) for score in parameters["base_score"].strip("[]").split(",")]
    scores = scores * n_outputs if len(scores) == 1 else scores
    n_classes = max(n_outputs, 2) if objective.startswith(("binary", "multi")) else 0
    known = list(range(n_classes)) if classes is None else _ascending(classes)
    if len(known) != n_classes:
        raise ValueError(
            f"classes must be those of the booster, {n_classes} classes; got {len(known)}: {known}"
        )
    levels = _levels_of(document, forest, int(parameters["num_feature"]), release)
    n_bytes = (max((len(known) + 1 for known in levels if known is not None), default=0) + 7) // 8
    return BoostedTrees(
        trees=[
            _tree_of(tree, n_bytes, weight)
            for tree, weight in zip(forest["trees"], weights, strict=False)
        ],
        classes=known,
        base_scores=scores,
        base_margins=OBJECTIVES[objective].link(scores).tolist(),
        learning_rate=float("nan"),
        n_features=int(parameters["num_feature"]),
        features=_features_of(document),
        losses=[],
        objective=objective,
        parameter=_parameter_of(document["objective"]),
        levels=levels,
        xgboost_rules=_rules_of(release),
    )


def _rules_of(release: str) -> RulesName:
    """Return the rules of a release; warn if they are not known, and return the newest ones."""
    try:
        return rules_of(release)
    except ValueError as error:
        warnings.warn(f"{error}; here, {NEWEST_RULES!r} is chosen", stacklevel=4)
        return NEWEST_RULES


def _forest_of(gradient_booster: dict[str, Any]) -> tuple[dict[str, Any], Floats32]:
    """Return the trees in XGBoost's JSON, and the weight of each, 1 unless trees were dropped.

    The weights are next to the name ``"dart"`` in XGBoost 3.2, next to the model in 3.3, and in the
    model since 3.4.
    """
    inside: dict[str, Any] = gradient_booster.get("gbtree", gradient_booster)
    forest: dict[str, Any] = inside["model"]
    weights = forest.get("weight_drop") or gradient_booster.get("weight_drop")
    return forest, np.array(weights or [1] * len(forest["trees"]), np.float32)


def _check_release(objective: str, n_outputs: int, release: str) -> None:
    """Raise ValueError when a release of XGBoost predicts otherwise with an objective.

    XGBoost 3.3 and 3.2 do not sort several quantiles, and 3.2 has no expectiles.
    """
    since = OBJECTIVES[objective].since
    wanted, installed = (tuple(map(int, version.split(".")[:2])) for version in (since, release))
    if installed < wanted and (n_outputs > 1 or objective == "reg:expectileerror"):
        raise ValueError(
            f"{objective} with {n_outputs} output(s) needs XGBoost {since} or later, whose"
            f" predictions are those of this model; got {release}: install a later one"
        )


def _parameter_of(objective: dict[str, Any]) -> Parameter:
    """Return the parameter of an objective in XGBoost's JSON."""
    groups = [group for group in objective.values() if isinstance(group, dict)]
    values = dict(chain.from_iterable(group.items() for group in groups))
    name = OBJECTIVES[objective["name"]].parameter_name
    if OBJECTIVES[objective["name"]].has_levels:
        values[name] = json.loads(values[name])
    return parameter_of(objective["name"], values)


def _booster_of(given: Any) -> Booster:
    """Return the booster of a fitted estimator, or a booster itself."""
    if hasattr(given, "get_booster"):
        given = given.get_booster()
    if not hasattr(given, "save_raw"):
        raise TypeError(
            "booster must be an xgboost.Booster or a fitted estimator of XGBoost; got a"
            f" {type(given).__name__}"
        )
    booster: Booster = given
    return booster


def _ascending(classes: Sequence[Any]) -> list[Any]:
    """Return classes; raise ValueError unless they are in ascending order.

    scikit-learn and the scores take the order of ``classes_`` as ascending.
    """
    known: list[Any] = read_classes(classes, "classes").tolist()
    if known != sorted(set(known)):
        raise ValueError(
            f"classes must be in ascending order, as scikit-learn and the scores expect it; got"
            f" {known}: train the booster with the numbers of the sorted classes, such as those of"
            " sklearn.preprocessing.LabelEncoder"
        )
    return known


def _features_of(learner: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the features, as they were before `to_booster`."""
    names = learner["feature_names"]
    before = json.loads(learner["attributes"].get(FEATURES, "[]"), strict=False)
    return tuple(before if _accepted_names(before) == names else names)


def _tree_of(model: dict[str, Any], n_bytes: int, factor: np.float32) -> Tree:
    """Return a tree of XGBoost's JSON, its nodes in level order; a set has ``n_bytes``.

    The values of leaves are multiplied by a factor.
    """
    left, right = model["left_children"], model["right_children"]
    order = [0]
    for node in order:  # grows while it is read
        if left[node] >= 0:
            order += [left[node], right[node]]
    is_split = np.array(left)[order] >= 0
    at = np.array(model["split_conditions"], np.float32)[order]
    feature = np.where(is_split, np.array(model["split_indices"])[order], -1).astype(np.int32)
    gain, cover, weight = (
        np.array(model[name], np.float32)[order]
        for name in ("loss_changes", "sum_hessian", "base_weights")
    )
    by_category = is_split & np.array(model["split_type"], bool)[order]
    return Tree(
        feature=feature,
        threshold=np.where(
            is_split, np.where(by_category, BY_CATEGORY, np.maximum(at, BELOW_ALL)), np.float32(0)
        ),  # that of a split of missing from present values is −∞ since XGBoost 3.3
        missing_left=is_split & np.array(model["default_left"], bool)[order],
        left=children(feature),
        value=np.where(is_split, np.float32(0), factor * at),
        gain=gain,
        cover=cover,
        weight=weight,
        right=_sets_of(model, n_bytes)[order],
    )


def _sets_of(model: dict[str, Any], n_bytes: int) -> Bytes:
    """Return the set of categories of each node in XGBoost's order."""
    bits = np.zeros((len(model["left_children"]), 8 * n_bytes), bool)
    for node, start, size in zip(
        model["categories_nodes"],
        model["categories_segments"],
        model["categories_sizes"],
        strict=True,
    ):
        bits[node, model["categories"][start : start + size]] = True
    return np.packbits(bits, axis=1, bitorder="little")


def _cats_model(levels: Sequence[tuple[str, ...] | None]) -> dict[str, Any]:
    """Return the names of the categories as in XGBoost's JSON: UTF-8 as signed bytes."""
    encodings, places = [], []
    for known in levels:
        names = [] if known is None else [text.encode() for text in known]
        offsets = [0, *np.cumsum([len(name) for name in names]).tolist()] if names else []
        values = np.frombuffer(b"".join(names), np.int8).tolist()
        encodings.append({"offsets": offsets, "values": values})
        signed = [np.frombuffer(name, np.int8).tolist() for name in names]  # as XGBoost compares
        places.append(sorted(range(len(names)), key=signed.__getitem__))
    return {
        "enc": encodings,
        "feature_segments": [0, *np.cumsum([len(of) for of in places]).tolist()],
        "sorted_idx": list(chain.from_iterable(places)),
    }


def _levels_of(
    learner: dict[str, Any], forest: dict[str, Any], n_features: int, release: str
) -> tuple[tuple[str, ...] | None, ...]:
    """Return the categories of each feature; empty if all features are numbers."""
    types = learner["feature_types"] or ["float"] * n_features
    if "c" not in types:
        return ()
    encodings = forest["cats"]["enc"]
    if len(encodings) != n_features:
        raise ValueError(
            "the booster must contain the names of its categories; got only numbers: train it on a"
            " DataFrame with pandas categories"
        )
    known = tuple(
        _names_of(encoding) if kind == "c" else None
        for kind, encoding in zip(types, encodings, strict=True)
    )
    before = json.loads(learner["attributes"].get(LEVELS, "[]"), strict=False)
    if known != tuple(None if texts is None else tuple(texts) for texts in before):
        _check_names(known, may_be_cut=tuple(map(int, release.split(".")))[:2] < (3, 4))
    return tuple(None if texts is None else _as_read(texts, f) for f, texts in enumerate(known))


def _as_read(texts: Sequence[str], feature: int) -> tuple[str, ...]:
    """Return the names of categories as rows are read; raise ValueError if two become equal."""
    names = tuple(composed(text.strip()) for text in texts)
    if equal := [text for text, name in zip(texts, names, strict=True) if names.count(name) > 1]:
        raise ValueError(
            f"the categories of feature {feature} must differ without outer blanks and with"
            f" composed characters, as rows are read; got {equal[:10]}: rename or join them before"
            " the training"
        )
    return names


def _check_names(levels: Sequence[tuple[str, ...] | None], *, may_be_cut: bool) -> None:
    """Warn of names of categories that XGBoost may have damaged; raise ValueError if it has.

    Before 3.4, XGBoost counted the characters of the categories of pandas where it needs bytes, and
    cut the names beyond ASCII, and those after them.
    """
    for f, known in enumerate(levels):
        if known is None or all(map(str.isascii, known)):
            continue
        remedy = "rename the categories to ASCII text, or train on an Arrow table"
        if any("\ufffd" in text for text in known) or len(set(known)) < len(known):
            raise ValueError(
                f"XGBoost has damaged the names of the categories of feature {f}, which are not all"
                f" ASCII: {remedy}"
            )
        if not may_be_cut:
            continue
        warnings.warn(
            f"the names of the categories of feature {f} are not all ASCII; before 3.4, XGBoost"
            " cuts such names when it is trained on a DataFrame of pandas. Compare"
            f" {list(known)[:10]} with the data, or {remedy}",
            stacklevel=5,
        )


def _names_of(encoding: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of categories; numbers are written as `fedlib.boosting.categories` does."""
    if "offsets" not in encoding:
        return tuple(map(spelled, encoding["values"]))
    text = np.array(encoding["values"], np.int8).tobytes()
    offsets = encoding["offsets"]
    return tuple(text[low:high].decode(errors="replace") for low, high in pairwise(offsets))


def _accepted_names(features: Sequence[str]) -> list[str]:
    """Return distinct names that XGBoost accepts."""
    names = [name.translate(NAME_CHARACTERS) for name in features]
    while len(set(names)) < len(names):
        names = [f"{name}_{f}" if names.count(name) > 1 else name for f, name in enumerate(names)]
    return names


def _tree_model(tree: Tree, number: int, n_features: int) -> dict[str, Any]:
    """Return a tree as in XGBoost's JSON, which keeps a leaf's value in place of a threshold."""
    split = tree.feature >= 0
    by_category = split & (tree.threshold == BY_CATEGORY)
    n = len(tree)
    parents = np.full(n, NO_PARENT)
    parents[tree.left[split]] = parents[tree.left[split] + 1] = np.flatnonzero(split)
    arrays = {
        "base_weights": np.where(split, tree.weight, tree.value),
        "default_left": (split & tree.missing_left).astype(int),
        "left_children": tree.left,
        "loss_changes": tree.gain,
        "parents": parents,
        "right_children": np.where(split, tree.left + 1, -1),
        "split_conditions": np.where(
            split & ~by_category,
            np.where(tree.threshold == BELOW_ALL, -np.inf, tree.threshold),
            tree.value,
        ),
        "split_indices": np.where(split, tree.feature, 0),
        "split_type": by_category.astype(int),
        "sum_hessian": tree.cover,
    }
    sets = [tree.categories[node] for node in np.flatnonzero(by_category)]
    sizes = [len(one) for one in sets]
    return {
        **{name: array.tolist() for name, array in arrays.items()},
        "categories": list(chain.from_iterable(sets)),
        "categories_nodes": np.flatnonzero(by_category).tolist(),
        "categories_segments": [sum(sizes[:i]) for i in range(len(sizes))],
        "categories_sizes": sizes,
        "id": number,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(n_features),
            "num_nodes": str(n),
            "size_leaf_vector": "1",
        },
    }


def contributions(
    model: BoostedTrees, rows: Floats32, base_margin: Floats32 | None = None
) -> Floats32:
    """Return the SHAP values (n_rows, n_outputs, n_features + 1) of rows, the means at the end.

    With a ``base_margin`` (n_rows, n_outputs), it is added to the means of the trees.

    Raises
    ------
    ImportError
        When xgboost is not installed.
    ValueError
        When the covers have noise, or the rows have other features.
    """
    import xgboost

    if model.has_noise:
        raise ValueError(
            "contributions need the exact sums of hessians in each node; those of a run with"
            " epsilon have noise and can be negative: explain the predictions from outside, such"
            " as with sklearn.inspection.permutation_importance"
        )
    if rows.shape[1] != model.n_features:
        raise ValueError(f"X must have the {model.n_features} features of fit; got {rows.shape[1]}")
    booster = to_booster(model)
    data = xgboost.DMatrix(
        rows,
        base_margin=base_margin,
        feature_names=booster.feature_names,
        feature_types=booster.feature_types,
        enable_categorical=True,
    )
    values: Floats32 = booster.predict(data, pred_contribs=True)
    return values.reshape(len(rows), model.n_outputs, model.n_features + 1)


class Explained:
    """Base class of estimators that explain the predictions of boosted trees."""

    model_: BoostedTrees
    n_features_in_: int

    def predict_contributions(
        self, X: ArrayLike, *, base_margin: ArrayLike | None = None
    ) -> Floats32:
        """Return what each feature adds to the margin of each row: XGBoost's SHAP values.

        The values of a row and the mean at their end add up to its margin: the log-odds of the
        second class, the margin of each of several classes, or, for a regression, the prediction
        before the inverse link. XGBoost computes them from the trees and from the covers, the sums
        of the hessians of all clients' rows. So no row and no message is needed but the rows that
        are explained, which stay here.

        Parameters
        ----------
        X : array-like (n_rows, n_features)
            As for ``predict``.
        base_margin : array-like (n_rows,), or (n_rows, n_classes), optional
            As for ``predict``.

        Returns
        -------
        contributions : array (n_rows, n_features + 1) of float32
            With an axis for the classes in between, (n_rows, n_classes, n_features + 1), for
            ``"multi:softprob"``. The last column is the mean margin over the rows of training, or
            with ``base_margin`` that of the row and the mean of the trees.

        Raises
        ------
        ImportError
            When xgboost is not installed.
        ValueError
            When the model was fitted with `epsilon`, because the covers have noise then; or for
            rows that ``predict`` refuses.

        Notes
        -----
        Cost: ``O(n_rows * n_trees * n_leaves * max_depth**2)``.

        Source: Lundberg, S. M., Erion, G. G., and Lee, S.-I.: Consistent individualized feature
        attribution for tree ensembles, arXiv:1802.03888, 2018.

        Examples
        --------
        >>> from fedlib import FederatedXGBRegressor
        >>> parts = [([[0.0], [1.0]], [1.0, 3.0]), ([[0.0], [1.0]], [1.0, 3.0])]
        >>> model = FederatedXGBRegressor(1, learning_rate=1.0, reg_lambda=0.0).fit(parts)
        >>> model.predict_contributions([[0.0], [1.0]]).tolist()
        [[-1.0, 2.0], [1.0, 2.0]]
        """
        check_is_fitted(self, "model_")
        values = contributions(self.model_, *self._rows_and_margins(X, base_margin))
        return values[:, 0] if self.model_.n_outputs == 1 else values

    def plot_contributions(
        self, X: ArrayLike, *, output: Any = None, most: int = 10, ax: Axes | None = None
    ) -> Axes:
        """Draw what each feature adds to the margin of each row, the features that add most first.

        Parameters
        ----------
        X : array-like (n_rows, n_features)
            As for ``predict``; a few thousand rows are enough.
        output : class, optional
            For ``"multi:softprob"``: the class whose margin is explained.
        most : int, default=10
            The count of features that are drawn, at least 1.
        ax : Axes, optional
            By default the current ones.

        Raises
        ------
        ImportError
            When xgboost is not installed.
        ValueError
            As `predict_contributions`; or when ``output`` is not one of several classes.
        """
        check_is_fitted(self, "model_")
        rows = self._check_rows(X)
        values = contributions(self.model_, rows)
        index = 0
        if self.model_.n_outputs > 1:
            classes = list(self.model_.classes)
            if output not in classes:
                raise ValueError(
                    f"output must be one of the classes {', '.join(map(repr, classes))}; got"
                    f" {output!r}"
                )
            index = classes.index(output)
        elif output is not None:
            raise ValueError(f"output must be None for a model with one margin; got {output!r}")
        from fedlib.figures.scores import contributions as draw

        names = self.model_.features or [f"feature {f}" for f in range(self.n_features_in_)]
        return draw(values[:, index, :-1], rows, names, most=most, ax=ax)

    def _check_rows(self, X: ArrayLike) -> Floats32:
        """Return new rows for the model."""
        raise NotImplementedError

    def _rows_and_margins(self, X: ArrayLike, base_margin: Any) -> tuple[Floats32, Floats32 | None]:
        """Return new rows for the model, and their margins before the first tree if given."""
        raise NotImplementedError
