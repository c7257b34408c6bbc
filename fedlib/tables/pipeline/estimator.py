"""The estimator of pipelines."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from functools import partial, wraps
from numbers import Integral
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from fedlib.core.aggregation import Aggregation, agree_on_features
from fedlib.core.array_types import Bools
from fedlib.core.client import Client, roles_of
from fedlib.core.column_names import as_table, listed
from fedlib.core.columns import NUMBER, TEXT, RawTable, read_columns
from fedlib.core.estimator import Clusterer, Federated
from fedlib.core.parameters import (
    KW_ONLY,
    Fraction,
    Interval,
    Kind,
    OptionalBounds,
    OptionalNames,
    StrOptions,
)
from fedlib.core.points import NO_BOUNDS, check_bounds
from fedlib.core.protocol import Flow, LocalTransport
from fedlib.core.registry import PIPELINE
from fedlib.protection.estimator import (
    ProtectedFederated,
    check_nothing_lacks,
    in_schema,
    is_protected,
    mask_clients,
)
from fedlib.protection.privacy import split_guarantee
from fedlib.tables.components.flow import Components
from fedlib.tables.pipeline.client import PipelineClient
from fedlib.tables.pipeline.flow import (
    PipelineModel,
    Rules,
    check_columns,
    clients_with_gaps,
    gap_error,
    limits_without_scale,
    pipeline,
    problems_of,
)
from fedlib.tables.pipeline.messages import Preprocess, expand
from fedlib.tables.schema import Schema
from fedlib.tables.schema.cells import Column
from fedlib.tables.summary.estimator import check_names
from fedlib.tables.summary.messages import CountCategories, agree_on_columns

N_OWN_SUMS = 2  # of scales with masks, and of components, before those of the protocol


class FederatedPipeline(Federated):
    """Any protocol on raw tables: gaps are filled, numbers scaled and text encoded beforehand.

    The preprocessing is computed from the tables of all clients, in the same run and ledger. The
    result equals scikit-learn's preprocessing of the pooled table, followed by the protocol.

    Attributes
    ----------
    estimator_ : Federated
        The fitted estimator of the protocol, for transformed tables.
    model_ : PipelineModel
        The fitted preprocessing and the protocol's model.
    labels_ : list of array
        The labels of each client's rows. Only if the parts were given to `fit`, and the protocol
        has labels.
    n_features_in_ : int
        The count of columns of the raw tables.
    feature_names_in_ : array (n_columns,) of str
        The names of the raw columns. Only if they have names.
    ledger_ : Ledger
        The messages of the run and their sizes.

    Raises
    ------
    ValueError
        When a parameter is out of range, or the protocol's clients hold different columns.

    See Also
    --------
    FederatedSummary : the statistics themselves.
    sklearn.pipeline.Pipeline : the same on pooled data.

    Notes
    -----
    *Disclosure.* ``"standard"`` and ``"mean"`` disclose each client's means and spreads,
    ``"minmax"`` its extremes, which are values of single rows, and medians and quartiles the number
    of its values in nested intervals. `pca` discloses each client's covariances. The ledger lists
    every message.

    *Cost.* Means and extremes take one round, principal components two, medians and quartiles at
    most 8. On a transport that rebuilds the client for each request, the table is transformed each
    time.

    *Weights.* A row of weight 0 gets a label, but has no influence: the scales, the values for
    gaps, the categories and the components do not depend on the row. All other rows count alike in
    them, whatever their weights are.

    *Unusual columns.* A constant column becomes 0. A column without values at some clients is
    filled like any gap; one without values at all clients is an error. Numbers that are codes
    become categories if `categorical` lists them. A client with one row takes part like any
    other, but its mean is its row. Dates, columns that differ between clients, and too many
    categories are errors that name the column.

    *Methods and attributes.* The pipeline has all those of the protocol's estimator, such as
    ``predict``, ``score``, ``staged_predict_proba``, ``classes_``, ``evals_result_`` and
    ``to_xgboost``. Where a method takes rows, they are raw ones; with ``impute="drop"``, the
    cluster of a row with a gap is -1, its numbers are NaN, and it has no class. Names of features,
    as in ``monotone_constraints`` or ``feature_importances_``, are those after `transform`. Rows
    for validation, as the fourth of ``(X, y, sample_weight, eval_set)``, are raw, and the
    preprocessing does not depend on them. With an estimator with ``warm_start=True``, `fit`
    continues its model, and the preprocessing stays that of the first fit.

    If a client is lost during the preprocessing, its statistics are computed again without it.

    Examples
    --------
    >>> import pandas as pd
    >>> from fedlib import FederatedPipeline, HorizontalDBSCAN
    >>> north = pd.DataFrame({"age": [20.0, 22.0, None], "income": [1000.0, 1100.0, 9000.0]})
    >>> south = pd.DataFrame({"age": [60.0, 61.0], "income": [9100.0, 9000.0]})
    >>> model = FederatedPipeline(HorizontalDBSCAN(0.75, 2), scale="standard", impute="drop")
    >>> model.fit([north, south]).labels_
    [array([ 0,  0, -1]), array([1, 1])]
    >>> model.predict(pd.DataFrame({"age": [21.0], "income": [1050.0]}))
    array([0])
    """

    client_class = PipelineClient
    estimator: Annotated[
        Federated,
        Federated,
        Kind("Federated"),
        """
        The estimator of a protocol whose clients hold different rows of the same columns.
        """,
    ]
    _: KW_ONLY
    scale: Annotated[
        str | None,
        StrOptions({"standard", "minmax", "robust"}),
        None,
        """
        How columns of numbers are scaled, after gaps are filled.

        - ``"standard"``: to mean 0 and variance 1. With an estimator with ``epsilon``, a column
          whose variance is not above its noise is scaled by its limits, to -1 and 1, with a
          warning.
        - ``"minmax"``: from the smallest and largest value, or the `bounds`, to 0 and 1.
        - ``"robust"``: by the median and the distance of the quartiles.
        """,
    ] = None
    impute: Annotated[
        str | None,
        StrOptions({"mean", "median", "drop"}),
        None,
        """
        The value for gaps in columns of numbers. A gap in a column of text belongs to no category.
        ``"drop"`` leaves out every row with a gap; its label is -1. By default, clients with gaps
        leave the run, unless the protocol accepts gaps.
        """,
    ] = None
    encode: Annotated[
        str | None,
        StrOptions({"one_hot"}),
        None,
        """
        ``"one_hot"``: a column of text becomes one column of 0 and 1 per category, in the
        alphabetical order of the categories of all clients. By default, text is an error, except
        that boosted trees get it as categories, unless the server sees only sums or noise.
        """,
    ] = None
    pca: Annotated[
        Components,
        """
        The count of principal components that replace the columns, after they are scaled and
        encoded, or in (0, 1) the fraction of the variance that they explain at least; see
        `FederatedPCA`. The components are called pca0, pca1 and so on. By default, the columns
        stay.
        """,
    ] = None
    categorical: Annotated[
        OptionalNames,
        """
        The columns whose numbers are codes of categories. Columns without names are called 0, 1 and
        so on.
        """,
    ] = None
    unknown: Annotated[
        str,
        StrOptions({"ignore", "error"}),
        """
        What `predict` does with a category that no client has: all columns of the category are 0,
        or an error.
        """,
    ] = "ignore"
    schema: Annotated[
        Schema | None,
        Schema,
        None,
        Kind("Schema"),
        """
        The columns on which the sites have agreed. Then no request asks for kinds, categories or
        extremes, the columns of text are those with an enum, and `estimator` may have ``secure``
        and ``epsilon``. In a protected run, numbers are clipped to the limits and unknown texts
        become "other". The parts are whole tables, with the columns of classes and weights.
        """,
    ] = None
    epsilon_fraction: Annotated[
        Fraction,
        """
        With a schema and an estimator with ``epsilon``: the fraction of epsilon and delta for the
        sums that `scale`, `impute` and `pca` need; the protocol has the rest.
        """,
    ] = 0.1
    bounds: Annotated[
        OptionalBounds,
        """
        For ``"minmax"``: known limits of columns, whose extremes clients then do not report. Values
        beyond them become less than 0 or more than 1.
        """,
    ] = None
    rank_error: Annotated[
        Fraction,
        """
        The largest error of the rank of medians and quartiles, as a fraction of the values, in
        [0, 1).
        """,
    ] = 0.0
    max_categories: Annotated[
        int,
        Interval(Integral, 1, 2**40, closed="both"),
        """
        The maximum count of categories of a column, at least 1. A client with more leaves the run.
        """,
    ] = 1000
    min_category_count: Annotated[
        int,
        Interval(Integral, 1, 2**40, closed="both"),
        """
        A client withholds the categories with fewer rows, at least 1. A category that all clients
        withhold is treated like an unknown one, so it needs ``unknown="ignore"``.
        """,
    ] = 5

    @property
    def name(self) -> str:  # type: ignore[override]
        """The protocol's name: ``pipeline/`` and the name of the estimator's protocol."""
        return f"{PIPELINE}{self.estimator.name}"

    def _rules(self) -> Rules:
        if self.bounds is not None and self.scale != "minmax":
            raise ValueError(f"bounds need scale='minmax', got scale={self.scale!r}")
        if self.min_category_count > 1 and self.unknown == "error":
            raise ValueError(
                "min_category_count above 1 needs unknown='ignore', since withheld categories are"
                f" unknown; got {self.min_category_count}"
            )
        return Rules(
            self.scale,
            self.impute,
            self.encode,
            check_names(self.categorical),
            "error" if self.unknown == "error" else "ignore",
            NO_BOUNDS if self.bounds is None else check_bounds(self.bounds),
            self.rank_error,
            self.max_categories,
            self.min_category_count,
            self._accepts("gaps_allowed"),
            self._accepts("raw") and not is_protected(self.estimator),
            self.pca,
        )

    def _accepts(self, what: str) -> bool:
        """Return whether the protocol gets the columns themselves and accepts gaps, or text."""
        return self.pca is None and bool(getattr(self.estimator.client_class, what, False))

    def _flow(self) -> Flow[PipelineModel[Any]]:
        check_wrapped(type(self.estimator))
        if self.schema is not None:
            return self._agreed_flow(self.schema)
        if is_protected(self.estimator):
            lacking = [
                "schema, because the pipeline would ask for kinds and categories of single sites"
                " (got schema=None)"
            ]
            check_nothing_lacks(self.estimator, [*self.estimator._lacking(), *lacking])
        rules, inner = self._rules(), self._inner().protocol()
        return pipeline(rules, lambda _: inner, self._fitted_rules)

    @property
    def _start(self) -> PipelineModel[Any] | None:
        warm = getattr(self.estimator, "warm_start", False)
        return vars(self).get("model_") if warm else None

    @property
    def _fitted_rules(self) -> Preprocess | None:
        """The preprocessing of the model that `fit` continues; None if it begins a new one."""
        return None if self._start is None else self._start.rules

    def _inner(self) -> Federated:
        """Return a copy of the estimator, with the model that it continues."""
        if self._start is None:
            return copy.copy(self.estimator)
        inner = clone(self.estimator)
        inner.model_ = self._start.model
        return inner

    def _agreed_flow(self, schema: Schema) -> Flow[PipelineModel[Any]]:
        """Return the flow whose rules follow from a schema."""
        rules, protected = self._rules(), is_protected(self.estimator)
        if rules.scale == "robust" or rules.impute == "median" or rules.categorical:
            raise ValueError(
                "with a schema, scale must be None, 'standard' or 'minmax', impute None, 'mean' or"
                " 'drop', and categorical None: codes of categories are an enum of the schema; got"
                f" scale={rules.scale!r}, impute={rules.impute!r}, categorical={self.categorical!r}"
            )
        columns = [column for column in schema.columns if column.role == "feature"]
        check_nothing_lacks(self.estimator, self._lacking(schema, columns, rules))
        if protected:
            columns = [column.protected() for column in columns]
        if protected and self.pca is not None and self._start is not None:
            raise ValueError(
                "warm_start must be False with pca and secure=True, because the limits of the"
                " components are those of their first run; got True"
            )
        n_asked = (rules.scale == "standard" or rules.impute == "mean") + (self.pca is not None)
        spender, inner = copy.copy(self.estimator), self._inner()
        if getattr(inner, "epsilon", None) is not None and n_asked:
            own, rest = split_guarantee(inner.epsilon, inner.delta, self.epsilon_fraction)
            spender.set_params(**own)
            inner.set_params(**rest)
        aggregation = Aggregation()
        if isinstance(spender, ProtectedFederated):
            aggregation = spender._aggregation(max(n_asked, 1))
            inner.first_sum += N_OWN_SUMS * (1 if self.pca is None else 2)
        if protected and schema.classes and getattr(inner, "classes", ()) is None:
            inner.set_params(classes=schema.classes)
        if protected and schema.weight and getattr(inner, "max_weight", ()) is None:
            inner.set_params(max_weight=schema.limits[schema.weight][1])

        def protocol(limits: dict[str, tuple[float, float]]) -> Flow[Any]:
            bounded = copy.copy(inner)
            if protected:
                bounded.known_bounds = limits
            return bounded.protocol()

        limits = limits_without_scale(columns, rules)
        if self.pca is None or self.pca >= 1:
            protocol(limits)  # reports bad parameters before any message
        else:  # their count follows from the run
            inner._validate_params()
        return pipeline(rules, protocol, self._fitted_rules, columns, protected, aggregation)

    def _lacking(self, schema: Schema, columns: Sequence[Column], rules: Rules) -> list[str]:
        """Return everything that the run still needs of the schema and the parameters."""
        inner, parameters, of_schema = clone(self.estimator), [], []
        if isinstance(inner, ProtectedFederated):
            inner.schema = schema  # whose limits and classes the protocol gets
            parameters, of_schema = inner._lacking(), inner._lacking_in(schema)
        texts = [column.name for column in columns if column.kind == TEXT]
        if texts and rules.encode is None and not rules.text_allowed:
            parameters.append(f"encode='one_hot', because there is text in {listed(texts)}")
        of_schema += problems_of(columns, rules, is_protected(inner))
        return [*parameters, *in_schema(list(dict.fromkeys(of_schema)))]

    def _client_factory(
        self, options: Sequence[dict[str, Any]]
    ) -> tuple[Any, Sequence[dict[str, Any]]]:
        wrapped = {"client_class": self.estimator.client_class}
        make: Any = self.client_class
        if self.schema is not None:
            roles = roles_of(self.estimator.client_class)
            make = self.schema.clients(make, is_protected(self.estimator), roles)
        return make, [{**one, **wrapped} for one in options]

    def _make_clients(self, *arguments: Any) -> dict[str, Client]:
        clients = super()._make_clients(*arguments)
        return mask_clients(clients) if getattr(self.estimator, "secure", False) else clients

    def _check_clients(self, clients: dict[str, Client]) -> None:
        """Raise, before the first message, the errors that the flow would find later."""
        agree_on_features(clients)
        if self.schema is not None:
            return
        rules = self._rules()
        described = {
            name: client.describe_columns(rules.view)
            for name, client in clients.items()
            if isinstance(client, PipelineClient) and not client.passive
        }
        if described:
            columns = agree_on_columns(described)
            check_columns(columns, rules)
            texts = np.flatnonzero(rules.kinds(columns.kinds) == TEXT)
            limits = rules.max_categories, rules.min_category_count
            request = CountCategories(*rules.view, texts, *limits)
            for name in described:
                clients[name].handle(request)  # raises if there are too many
        for client, column in clients_with_gaps(described, rules).items():
            raise gap_error(client, column)

    def _set_model(self, model: PipelineModel[Any]) -> None:
        super()._set_model(model)
        self.estimator_ = clone(self.estimator)
        self.estimator_._set_model(model.model)
        self.n_features_in_ = model.rules.n_features
        self._set_names(model.rules.features)

    def _set_labels(self, host: LocalTransport) -> None:
        super()._set_labels(host)
        self.estimator_.ledger_ = self.ledger_

    def _has_labels(self) -> bool:
        return self.estimator_._has_labels()

    def _labels_of(self, client: Any) -> NDArray[Any] | None:
        client = client if hasattr(client, "_kept") else client.inner  # behind masks
        labels = self.estimator_._labels_of(client.inner)
        return None if labels is None else expand(labels, client._kept)

    def report(self) -> str:
        """Return the result of the protocol's estimator as text."""
        check_is_fitted(self, "model_")
        return self.estimator_.report()

    def _like_fit(self, X: Any) -> Any:
        check_is_fitted(self, "model_")
        if self.schema is not None:
            X = self.schema.rows(X, is_protected(self.estimator))
        return super()._like_fit(X)

    def transform(self, X: Any) -> Any:
        """Return the table of numbers that the protocol's estimator gets.

        Parameters
        ----------
        X : DataFrame or array-like (n_rows, n_columns)
            A raw table with the columns of `fit`.

        Returns
        -------
        DataFrame or array (n_kept, n_new_columns)
            Without the rows with gaps if ``impute="drop"``, and with the index of the others.

        Raises
        ------
        ValueError
            As for `predict`.
        """
        table, kept = self._by_rules(X)
        if isinstance(table, pd.DataFrame) and isinstance(X, pd.DataFrame):
            table.index = X.index[kept]
        return table

    if not TYPE_CHECKING:  # otherwise mypy would find no misspelled attribute

        def __getattr__(self, name: str) -> Any:
            """Return a method or a fitted attribute of the protocol's estimator.

            Python calls it for what the pipeline itself lacks.
            """
            estimator = vars(self).get("estimator_", vars(self).get("estimator"))
            public = estimator is not None and not name.startswith("_")
            is_method = public and inspect.isfunction(inspect.getattr_static(estimator, name, None))
            if not is_method and not (public and name.endswith("_") and hasattr(estimator, name)):
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name)
            if name == "fit_predict":
                return partial(Clusterer.fit_predict, self)
            method = getattr(estimator, name)
            if not is_method or next(iter(inspect.signature(method).parameters), "") != "X":
                return method

            @wraps(method)
            def of_raw_table(X: Any, *arguments: Any, **options: Any) -> Any:
                rows, kept = self._transformed(X, name)
                if options.get("base_margin") is not None and not kept.all():
                    options["base_margin"] = np.asarray(as_table(options["base_margin"]))[kept]
                found = getattr(self.estimator_, name)(rows, *arguments, **options)
                if inspect.isgenerator(found):  # of the stages
                    return (expand(one, kept) for one in found)
                return expand(found, kept) if isinstance(found, np.ndarray) else found

            return of_raw_table

    def _raw(self, X: Any) -> RawTable:
        """Return new rows as those of `fit` were read: texts stay text where the rules know it."""
        X = self._like_fit(X)
        return read_columns(X, np.flatnonzero(self.model_.rules.kinds != NUMBER).tolist())

    def _by_rules(self, X: Any) -> tuple[Any, Bools]:
        """Return new rows by the rules, and which rows are in them."""
        raw = self._raw(X)
        return self.model_.rules.transform(raw)

    def _transformed(self, X: Any, method: str) -> tuple[Any, Bools]:
        """Return a raw table as the estimator's method gets it, and which rows are in it."""
        transformed, kept = self._by_rules(X)
        supervised = getattr(self.estimator_.client_class, "supervised", False)
        if method in ("predict", "score") and supervised and not kept.all():
            row = int(np.argmin(kept)) + 1
            raise ValueError(f"X must have no gaps with impute='drop', got one in row {row}")
        return transformed, kept


def check_wrapped(estimator: type[Federated]) -> None:
    """Raise ValueError when a pipeline cannot wrap the clients of a protocol."""
    client_class = estimator.client_class
    supervised = getattr(client_class, "supervised", False)
    if getattr(client_class, "raw", False) and not supervised:  # boosting profits from one, too
        raise ValueError(f"{estimator.__name__} takes raw tables itself; it needs no pipeline")
    if "ids" in inspect.signature(client_class).parameters:
        raise ValueError(
            f"{estimator.__name__} cannot be part of a pipeline: its clients hold different"
            " columns, so each of them scales its columns by itself"
        )
