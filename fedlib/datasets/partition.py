"""Split the rows or the columns of one data set over several clients.

Every function returns a list with one array of indices per client. Together the arrays contain each
row (or column) exactly once. The indices of each client ascend.
"""

from collections.abc import Iterator
from numbers import Integral, Real
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import StratifiedKFold
from sklearn.utils import check_array, check_random_state

Indices = NDArray[np.intp]
How = Literal["stratified", "uniform", "dirichlet", "spatial"]


def split_rows(
    X: ArrayLike,
    n_clients: int,
    y: ArrayLike | None = None,
    how: How = "stratified",
    random_state: int | np.random.RandomState | None = None,
    *,
    alpha: float = 0.5,
) -> list[Indices]:
    """Split the rows of ``X`` over clients.

    Parameters
    ----------
    X : array-like (n_rows, n_columns)
        The data. Only ``"spatial"`` uses the values.
    n_clients : int
        The count of clients, from 1 to ``n_rows``.
    y : array-like (n_rows,), optional
        The class of each row; required by ``"stratified"`` and ``"dirichlet"``.
    how : {"stratified", "uniform", "dirichlet", "spatial"}, default="stratified"
        ``"stratified"``
            Every client gets about the same fraction of every class: the test folds of
            scikit-learn's ``StratifiedKFold``. Rows are shuffled only if ``random_state`` is given;
            without it, this is the split of M1 (Section 4.2, ``generate_dataset_chunks``) and M2.
        ``"uniform"``
            Rows at random; the sizes of clients differ by at most one.
        ``"dirichlet"``
            Label skew: each class is divided over the clients in proportions drawn from a symmetric
            Dirichlet distribution [1]_. A client may get no rows, in this mode only.
        ``"spatial"``
            Every client gets a region: the rows are cut into two parts along their widest column,
            and each part is cut again; the sizes of clients differ by at most one. Deterministic.
    random_state : int, RandomState or None, default=None
        The seed. With None, ``"uniform"`` and ``"dirichlet"`` differ from call to call and
        ``"stratified"`` does not shuffle.
    alpha : float, default=0.5
        The concentration of ``"dirichlet"``, positive: with small values each class is at few
        clients, with large ones the fractions are almost equal.

    Returns
    -------
    list of array of intp
        The row indices of each client, ascending.

    Raises
    ------
    ValueError
        When ``n_clients``, ``how`` or ``alpha`` is out of range, ``y`` is missing or differs from
        ``X`` in length, no class has ``n_clients`` rows for ``"stratified"``, or values are not
        finite numbers for ``"spatial"``.

    Warns
    -----
    UserWarning
        From ``StratifiedKFold``, when a class has fewer than ``n_clients`` rows, so that some
        clients get none of it.

    References
    ----------
    .. [1] M. Yurochkin, M. Agarwal, S. Ghosh, K. Greenewald, T. N. Hoang, Y. Khazaeni, "Bayesian
       nonparametric federated learning of neural networks", ICML 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from fedlib.datasets.partition import split_rows
    >>> X = np.arange(12.0).reshape(6, 2)
    >>> split_rows(X, 2, y=["a", "a", "a", "a", "b", "b"])
    [array([0, 1, 4]), array([2, 3, 5])]
    >>> split_rows(X, 3, how="spatial")
    [array([0, 1]), array([2, 3]), array([4, 5])]
    """
    if how not in get_args(How):
        raise ValueError(f"how must be one of {', '.join(map(repr, get_args(How)))}, got {how!r}")
    if np.ndim(X) != 2:
        raise ValueError(f"X must have two dimensions (rows, columns), got {np.ndim(X)}")
    n_rows = np.shape(X)[0]
    _check_n_clients(n_clients, n_rows, "rows")

    if how == "spatial":
        return [np.sort(rows) for rows in _regions(check_array(X, dtype=float), n_clients)]
    if how == "uniform":
        rows = check_random_state(random_state).permutation(n_rows)
        return [np.sort(part) for part in np.array_split(rows, n_clients)]

    y = _check_y(y, n_rows, how)
    if how == "dirichlet":
        return _label_skew(y, n_clients, alpha, random_state)
    return _stratified(y, n_clients, random_state)


def split_columns(X: ArrayLike, n_clients: int) -> list[Indices]:
    """Split the columns of ``X`` over clients in turn.

    Client *i* of *n* gets the columns *i*, *i + n*, *i + 2n*, …. With as many clients as columns,
    each gets one, as in the vertical experiments of M1 (Section 4.3).

    Parameters
    ----------
    X : array-like (n_rows, n_columns)
        The data.
    n_clients : int
        The count of clients, from 1 to ``n_columns``.

    Returns
    -------
    list of array of intp
        The column indices of each client, ascending.

    Raises
    ------
    ValueError
        When ``X`` does not have two dimensions or ``n_clients`` is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from fedlib.datasets.partition import split_columns
    >>> split_columns(np.zeros((10, 5)), 2)
    [array([0, 2, 4]), array([1, 3])]
    """
    if np.ndim(X) != 2:
        raise ValueError(f"X must have two dimensions (rows, columns), got {np.ndim(X)}")
    n_columns = np.shape(X)[1]
    _check_n_clients(n_clients, n_columns, "columns")
    return [np.arange(client, n_columns, n_clients) for client in range(n_clients)]


def _check_n_clients(n_clients: int, maximum: int, what: str) -> None:
    whole = isinstance(n_clients, Integral) and not isinstance(n_clients, bool)
    if not whole or not 1 <= n_clients <= maximum:
        raise ValueError(
            f"n_clients must be an integer from 1 to {maximum}, the number of {what},"
            f" got {n_clients!r}"
        )


def _check_y(y: ArrayLike | None, n_rows: int, how: str) -> NDArray:
    if y is None:
        raise ValueError(f"y, the class of each row, is required by how={how!r}")
    y = np.asarray(y)
    if y.shape != (n_rows,):
        raise ValueError(
            f"y must contain one class for each of the {n_rows} rows of X, got shape {y.shape}"
        )
    return y


def _stratified(y: NDArray, n_clients: int, random_state) -> list[Indices]:
    # StratifiedKFold does not accept one fold, and its errors name its own parameter.
    if n_clients == 1:
        return [np.arange(len(y))]
    largest = np.unique(y, return_counts=True)[1].max()
    if n_clients > largest:
        raise ValueError(
            f"n_clients must be at most the number of rows of the largest class, {largest},"
            f" for how='stratified', got {n_clients}"
        )
    shuffle = random_state is not None
    folds = StratifiedKFold(n_clients, shuffle=shuffle, random_state=random_state)
    return [rows for _, rows in folds.split(np.zeros(len(y)), y)]


def _label_skew(y: NDArray, n_clients: int, alpha: float, random_state) -> list[Indices]:
    # The generator adds the concentrations up; an infinite sum would make every fraction zero.
    if not isinstance(alpha, Real) or not 0 < float(alpha) * n_clients < np.inf:
        raise ValueError(f"alpha must be a positive finite number, got {alpha!r}")
    # Unlike RandomState, Generator draws Dirichlet proportions without underflow for small alpha.
    rng = np.random.default_rng(check_random_state(random_state).randint(2**32, dtype=np.uint64))
    parts: list[list[Indices]] = [[] for _ in range(n_clients)]
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        fractions = rng.dirichlet(np.full(n_clients, alpha))
        cuts = np.rint(np.cumsum(fractions)[:-1] * len(rows)).astype(int)
        for part, chunk in zip(parts, np.split(rows, cuts), strict=True):
            part.append(chunk)
    return [np.sort(np.concatenate(part)) for part in parts]


def _regions(X: NDArray, n_clients: int, rows: Indices | None = None) -> Iterator[Indices]:
    """Yield the rows of each client, by recursive bisection."""
    if rows is None:
        rows = np.arange(len(X))
    if n_clients == 1:
        yield rows
        return
    widest = np.ptp(X[rows], axis=0).argmax()
    rows = rows[np.argsort(X[rows, widest], kind="stable")]
    left = n_clients // 2
    # In proportion to the clients, rounded down: both sides keep at least one row per client.
    cut = len(rows) * left // n_clients
    yield from _regions(X, left, rows[:cut])
    yield from _regions(X, n_clients - left, rows[cut:])
