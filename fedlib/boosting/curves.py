"""A figure of the metrics by round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sklearn.utils.validation import check_is_fitted

from fedlib.boosting.base import Boosted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["learning_curve"]


def learning_curve(model: Boosted, metric: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw a metric of the rows for validation after each round, and the best round.

    Parameters
    ----------
    model : FederatedXGBClassifier or FederatedXGBRegressor
        A model that was fitted with validation.
    metric : str, optional
        One of its metrics; by default the last one, which decides on early stopping.
    ax : Axes, optional
        By default the current ones.

    Raises
    ------
    ValueError
        When the model has no such metric.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from fedlib import FederatedXGBRegressor
    >>> part = [[1.0], [2.0]], [1, 2], None, ([[1.5]], [2])
    >>> model = FederatedXGBRegressor(3, eval_metric="mae").fit([part])
    >>> learning_curve(model, ax=plt.figure().subplots()).get_ylabel()
    'mae'
    """
    import matplotlib.pyplot as plt

    check_is_fitted(model, "model_")
    metrics = model.model_.metrics
    name = metrics[-1] if metric is None and metrics else metric
    if name is None or name not in metrics:
        raise ValueError(f"metric must be one of {', '.join(metrics) or 'none'}; got {metric!r}")
    values = model.model_.evaluations[metrics.index(name)]
    ax = plt.gca() if ax is None else ax
    ax.plot(range(1, len(values) + 1), values)
    if name == metrics[-1] and (best := model.model_.best_round) is not None:
        ax.plot(best + 1, values[best], "o")
        ax.annotate(
            f"round {best + 1}", (best + 1, values[best]), (4, 6), textcoords="offset points"
        )
    ax.set_xlabel("rounds")
    ax.set_ylabel(name)
    return ax
