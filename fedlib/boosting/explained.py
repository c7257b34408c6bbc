"""What each feature adds to a prediction: SHAP values, which XGBoost computes from the trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from fedlib.boosting.export import to_booster
from fedlib.boosting.trees import BoostedTrees
from fedlib.core.array_types import Floats32

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
            The number of features that are drawn, at least 1.
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
