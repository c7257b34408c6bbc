"""Run any protocol on a small set and draw what the clients get and what the server sees.

`show` opens the controls in JupyterLab, where you can also upload a table. `gallery` draws the
first result of every protocol, for the published page. Everything between them works without a
browser: `run` computes an `Outcome` from `Settings`, and a `Picture` draws it.
"""

import html
import io
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import roc_auc_score

import study
from fedlib import (
    DBDC,
    PPDBDC,
    SDBDC,
    ApproximateDBSCAN,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedXGBClassifier,
    GaussianMixtureDBSCAN,
    HorizontalDBSCAN,
    VerticalDBSCAN,
)
from fedlib.core.protocol import TooFewClients
from fedlib.datasets.partition import split_columns, split_rows
from fedlib.evaluation.metrics import clustering_scores
from fedlib.testing import Recorder
from study.interactive import views
from study.shared.results import is_build

MAX_POINTS = 5_000
DATASETS = ["moons", "circles", "blobs", "varied", "aniso", "s-set1", "banana", "aggregation"]
DATASETS += ["3MC", "shapes_13147"]
DEALINGS = ["uniform", "stratified", "dirichlet", "spatial"]
LOSSES = ["before their first reply", "after their first reply"]
TABLES = ".csv,.tsv,.txt,.gz,.arff,.parquet"  # what can be uploaded
WIDTH = "6.5rem"  # of the names of the controls


class Range(NamedTuple):
    """A numeric parameter: smallest value, largest value, step, and first value."""

    low: float
    high: float
    step: float
    first: float


class Choice(NamedTuple):
    """A parameter with a few values; the first is the default."""

    values: tuple

    @property
    def first(self):
        """The default."""
        return self.values[0]


class Loaded(NamedTuple):
    """A data set in two features, with standard deviation 1 over both, and its origin."""

    X: np.ndarray
    y: np.ndarray
    source: str


@dataclass(frozen=True)
class Settings:
    """What the controls determine.

    Attributes
    ----------
    protocol : str
        One of `PROTOCOLS`.
    dataset : str
        One of `DATASETS`, or the path of a table; see `load`.
    parameters : dict
        The parameters of the protocol; those left out have their first values.
    n_clients : int
        At least 1. Vertical DBSCAN always has one client per feature.
    dealing : str
        How the rows are split, one of `DEALINGS`.
    n_passive : int
        This many of the last clients share nothing.
    n_lost : int
        This many of the first clients leave the run.
    loss : str
        When they leave, one of `LOSSES`.
    random_state : int
    """

    protocol: str = "horizontal-dbscan"
    dataset: str = "moons"
    parameters: dict[str, Any] = field(default_factory=dict)
    n_clients: int = 5
    dealing: str = "uniform"
    n_passive: int = 0
    n_lost: int = 0
    loss: str = LOSSES[1]
    random_state: int = 0


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes
    ----------
    X, y : arrays (n_points, 2) and (n_points,)
        The points and their classes.
    labels : array (n_points,) of int
        The cluster or class that each point has at its client, -1 for noise.
    has_labels : array (n_points,) of bool
        False for the points of lost clients.
    model : Federated
    recorder : Recorder
        With all messages.
    scores : dict of str to float
        Agreement of the labels with the classes, over the points that have labels.
    """

    X: np.ndarray
    y: np.ndarray
    labels: np.ndarray
    has_labels: np.ndarray
    model: Any
    recorder: Recorder
    scores: dict[str, float]


@dataclass(frozen=True)
class Protocol:
    """A protocol: its estimator, its parameters, and how to draw what the server sees."""

    estimator: type
    parameters: dict[str, Range | Choice]
    view: Callable[[Any, Outcome], str]
    fixed: dict[str, Any] = field(default_factory=dict)
    by_columns: bool = False
    has_classes: bool = False
    server_draws: bool = False  # the estimator has a random_state
    clients_draw: bool = False  # the clients have one


def load(name):
    """Return at most 5,000 points of a data set, scaled by one factor, or of your own table.

    Parameters
    ----------
    name : str
        One of `DATASETS`, or the path of a file that `study.load` reads, such as
        ``tables/mine.csv``. Of a table, the first two columns of numbers are used, each scaled to
        standard deviation 1; the column ``class`` contains the classes, if there are any.

    Raises
    ------
    ValueError
        When the name is unknown, or the table cannot be read or drawn; the text says why.
    """
    if name in DATASETS:
        return _load_known(name)
    path = study.ROOT / name
    if not path.suffix:
        raise ValueError(f"dataset must be a file or one of {', '.join(DATASETS)}; got {name!r}")
    return _load_own(path, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=4)
def _load_own(path, changed):
    """Return the points of a table; ``changed`` is the time of its last change."""
    data = study.load_own(path)
    if min(data.X.shape) < 2:
        n_rows, n_columns = data.X.shape
        raise ValueError(
            f"dataset {path.name!r} must have at least 2 rows and 2 columns of numbers besides"
            f" {study.CLASS!r}, got {n_rows} rows and {n_columns} columns"
        )
    names = data.feature_names[:2]
    rows = np.random.default_rng(0).permutation(len(data.X))[:MAX_POINTS]
    X = data.X[rows, :2] - data.X[rows, :2].mean(axis=0)
    scale = X.std(axis=0)
    for column, width in zip(names, scale, strict=True):
        if width == 0:
            raise ValueError(f"dataset {path.name!r}: all values of column {column!r} are equal")
    return Loaded(X / scale, data.y[rows], f"your columns {names[0]} and {names[1]}")


@cache
def _load_known(name):
    """Return the points of one of `DATASETS`."""
    data = study.fetch(name)  # the title states where it comes from
    rows = np.random.default_rng(0).permutation(len(data.X))[:MAX_POINTS]
    X = data.X[rows] - data.X[rows].mean(axis=0)
    return Loaded(X / X.std(), data.y[rows], data.source)


def run(settings):
    """Run a protocol in this process and return the `Outcome`.

    Raises
    ------
    ValueError
        When a setting is out of range.
    TooFewClients
        When no client with data remains.
    """
    protocol = PROTOCOLS[settings.protocol]
    data = load(settings.dataset)
    y = data.y % 2 if protocol.has_classes else data.y
    if protocol.has_classes and len(np.unique(y)) < 2:
        raise ValueError(
            f"{settings.protocol} needs a column {study.CLASS!r} with two classes or more; "
            f"{Path(settings.dataset).name} has none"
        )
    model = protocol.estimator(**arguments(protocol, settings))
    parts, rows = deal(protocol, settings, data.X, y)
    recorder = Recorder(clients(protocol, settings, parts), tamper=losses(settings, len(parts)))
    model.fit(recorder, min_clients=None if protocol.by_columns else 1)
    labels, has_labels = collect(recorder, model, rows, len(y))
    scores = score(protocol, model, data.X, y, labels, has_labels)
    return Outcome(data.X, y, labels, has_labels, model, recorder, scores)


def arguments(protocol, settings):
    """Return the arguments of the estimator."""
    first = {name: parameter.first for name, parameter in protocol.parameters.items()}
    seed = {"random_state": settings.random_state} if protocol.server_draws else {}
    return first | settings.parameters | protocol.fixed | seed


def deal(protocol, settings, X, y):
    """Return the part of each client, and the rows in it."""
    if protocol.by_columns:
        return [X[:, columns] for columns in split_columns(X, 2)], [np.arange(len(X))]
    rows = split_rows(X, settings.n_clients, y, settings.dealing, settings.random_state)
    if protocol.has_classes:
        return [(X[part], y[part]) for part in rows], rows
    return [X[part] for part in rows], rows


def clients(protocol, settings, parts):
    """Return the clients by name; the last ones are passive."""
    made = {}
    for i, part in enumerate(parts):
        seed = {"random_state": settings.random_state + i} if protocol.clients_draw else {}
        made[str(i)] = protocol.estimator.client_class(part, **seed)
        made[str(i)].passive = i >= len(parts) - settings.n_passive
    return made


def losses(settings, n_clients):
    """Return for each client that is lost a function that drops its replies."""
    n_answered = LOSSES.index(settings.loss)

    def drop(answered, request, reply):
        answered.append(reply)
        return reply if len(answered) <= n_answered else None

    return {str(i): partial(drop, []) for i in range(min(settings.n_lost, n_clients))}


def collect(recorder, model, rows, n_points):
    """Return the labels of all points and which points have labels."""
    labels, has_labels = np.full(n_points, -1), np.zeros(n_points, bool)
    for (name, client), part in zip(recorder.members.items(), rows, strict=False):
        if name not in model.ledger_.lost:
            labels[part], has_labels[part] = client.state.labels, True
    return labels, has_labels


def score(protocol, model, X, y, labels, has_labels):
    """Return the scores of the points that have labels."""
    if protocol.has_classes:
        return {
            "accuracy": float((labels == y)[has_labels].mean()),
            "AUC": float(roc_auc_score(y, model.decision_function(X))),
        }
    return clustering_scores(y[has_labels], labels[has_labels])


EPS = Range(0.05, 1.0, 0.01, 0.2)
MIN_SAMPLES = Range(1, 40, 1, 5)
PROTOCOLS = {
    "horizontal-dbscan": Protocol(
        HorizontalDBSCAN,
        {
            "cell_size": Range(0.05, 1.0, 0.01, 0.25),
            "min_samples": MIN_SAMPLES,
            "border": Choice(("nearest", "absorb")),
            "assign": Choice(("point", "cell")),
            "adjacency": Choice(("faces", "full")),
        },
        views.draw_cells,
        server_draws=True,
    ),
    "approximate-dbscan": Protocol(
        ApproximateDBSCAN,
        {"eps": EPS, "min_samples": MIN_SAMPLES, "rho": Range(0.05, 1.0, 0.05, 0.5)},
        views.draw_cells,
    ),
    "vertical-dbscan": Protocol(
        VerticalDBSCAN,
        {"eps": EPS, "min_samples": MIN_SAMPLES},
        views.draw_neighbours,
        by_columns=True,
    ),
    "dbdc": Protocol(
        DBDC,
        {
            "eps": EPS,
            "min_samples": MIN_SAMPLES,
            "local_model": Choice(("core", "kmeans")),
            "eps_global": Range(0.05, 2.0, 0.01, 0.4),
        },
        views.draw_representatives,
    ),
    "sdbdc": Protocol(
        SDBDC,
        {"eps": EPS, "min_samples": MIN_SAMPLES, "coverage": Range(0.1, 1.0, 0.05, 1.0)},
        views.draw_representatives,
    ),
    "ppdbdc": Protocol(
        PPDBDC,
        {
            "eps": EPS,
            "min_samples": MIN_SAMPLES,
            "eps_rep": Range(0.02, 0.5, 0.01, 0.09),
            "noise": Range(0.1, 8.0, 0.1, 0.5),
            "noise_kind": Choice(("one_sided", "centred")),
            "min_weight": Range(1, 10, 1, 3),
        },
        views.draw_representatives,
        clients_draw=True,
    ),
    "gaussian-mixture-dbscan": Protocol(
        GaussianMixtureDBSCAN,
        {"eps": EPS, "min_samples": MIN_SAMPLES, "n_components": Range(1, 10, 1, 2)},
        views.draw_mixtures,
        server_draws=True,
    ),
    "kmeans": Protocol(
        FederatedKMeans,
        {
            "n_clusters": Range(1, 20, 1, 3),
            "method": Choice(("one_shot", "lloyd")),
            "n_init": Range(1, 10, 1, 1),
        },
        views.draw_centres,
        server_draws=True,
    ),
    "gaussian-mixture": Protocol(
        FederatedGaussianMixture,
        {
            "n_components": Range(1, 10, 1, 2),
            "method": Choice(("average", "em")),
            "max_rounds": Range(1, 30, 1, 5),
        },
        views.draw_mixture,
        {"max_local_iter": 10},
        server_draws=True,
    ),
    "xgboost": Protocol(
        FederatedXGBClassifier,
        {
            "n_trees": Range(1, 30, 1, 5),
            "max_depth": Range(1, 6, 1, 3),
            "learning_rate": Range(0.1, 1.0, 0.1, 0.3),
            "method": Choice(("histogram", "top_splits", "union")),
        },
        views.draw_classifier,
        {"tol": None},
        has_classes=True,
    ),
}


# --------------------------------------------------------------------------- pictures


class Picture:
    """Two panels that are drawn again for every outcome: the labels, and what the server sees."""

    def __init__(self, dpi=100):
        self.figure = Figure(figsize=(9, 4.4), dpi=dpi, layout="none")
        self.canvas = FigureCanvasAgg(self.figure)
        self.axes = self.figure.subplots(1, 2)
        self.figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.92, wspace=0.03)
        for ax in self.axes:
            hide_axes(ax)

    def draw(self, settings, outcome):
        """Draw an outcome."""
        left, right = self.axes
        for ax in self.axes:  # `Axes.clear` would make new ticks, which takes most of the time
            for artist in (*ax.lines, *ax.collections, *ax.images):
                artist.remove()
        draw_labels(left, outcome)
        draw_server(right, settings, outcome)

    def png(self):
        """Return the picture as the bytes of a PNG file.

        A palette of 256 colours and little compression make it several times as fast.
        """
        self.canvas.draw()
        image = Image.fromarray(np.asarray(self.canvas.buffer_rgba())).convert("RGB")
        buffer = io.BytesIO()
        image.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
            buffer, "png", compress_level=1
        )
        return buffer.getvalue()


def hide_axes(ax):
    """Show nothing of the axes but the title, whose place then need not be computed."""
    ax.xaxis.set_visible(False)
    ax.yaxis.set_visible(False)
    ax.set_frame_on(False)
    ax.set_title("", y=1.0)


def draw_labels(ax, outcome):
    """Draw the points in the colours of their labels; points of lost clients are left out."""
    labels = outcome.labels[outcome.has_labels]
    views.draw_points(ax, outcome.X[outcome.has_labels], labels)
    n_labels, n_noise = labels.max(initial=-1) + 1, (labels < 0).sum()
    what = "classes" if hasattr(outcome.model, "classes_") else "clusters"
    ax.set_title(f"clients: {n_labels} {what}, {n_noise:,} noise points")
    views.show_all(ax, outcome.X)


def draw_server(ax, settings, outcome):
    """Draw what the server sees."""
    views.show_all(ax, outcome.X)
    seen = PROTOCOLS[settings.protocol].view(ax, outcome)
    ax.set_title(f"server: {seen}")


def gallery(protocols=None, **options):
    """Draw the first result of each protocol: labels and the server's view. Return the figure.

    A protocol that cannot use a table of your own has the reason in place of its pictures.

    Parameters
    ----------
    protocols : list of str, optional
        By default all.
    **options
        Other fields of `Settings`.
    """
    names = list(protocols or PROTOCOLS)
    n_rows = -(-len(names) // 2)
    figure = plt.figure(figsize=(10, 2.7 * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, 4, squeeze=False)
    for ax in axes.flat:
        hide_axes(ax)
    for name, (left, right) in zip(names, axes.reshape(-1, 2), strict=False):
        settings = Settings(name, **options)
        try:
            outcome = run(settings)
        except (ValueError, TooFewClients) as error:
            if is_build():
                raise
            left.set_title(name, fontsize=9)
            left.text(0.5, 0.5, textwrap.fill(str(error), 32), ha="center", va="center")
            continue
        draw_labels(left, outcome)
        draw_server(right, settings, outcome)
        left.set_title(name, fontsize=9)
        right.set_title(textwrap.fill(right.get_title(), 32), fontsize=9)
    return figure


def summarise(settings, outcome):
    """Return the HTML of the scores and of the ledger."""
    rows = pd.DataFrame([outcome.scores]).to_html(index=False, float_format="{:.3f}".format)
    ledger = outcome.model.ledger_.summary().to_html(index=False)
    lost = "".join(
        f"<p>Client {html.escape(name)} was lost: {html.escape(reason)}</p>"
        for name, reason in outcome.model.ledger_.lost.items()
    )
    source = load(settings.dataset).source
    name = html.escape(Path(settings.dataset).name)
    origin = f"<p>{len(outcome.X):,} points of {name} ({html.escape(source)})</p>"
    return origin + rows + lost + ledger


# --------------------------------------------------------------------------- controls


def show():
    """Return the controls and the picture, for JupyterLab."""
    return Controls().box


class Controls:
    """The controls. Every change runs the protocol and draws the picture again.

    An uploaded table becomes one of the data sets. Like all data, it stays in this process.

    Attributes
    ----------
    box : ipywidgets.Widget
        What to display.
    common : dict of str to widget
        The settings that all protocols have.
    parameters : dict of str to widget
        The parameters of the chosen protocol.
    upload : ipywidgets.FileUpload
        The button for your own table.
    """

    def __init__(self):
        self.picture = Picture()
        self.folder = tempfile.TemporaryDirectory()  # of the uploaded tables
        self.common = {
            "protocol": widgets.Dropdown(options=list(PROTOCOLS)),
            "dataset": widgets.Dropdown(options=DATASETS),
            "n_clients": widgets.IntSlider(5, 1, 20),
            "dealing": widgets.Dropdown(options=DEALINGS),
            "n_passive": widgets.IntSlider(0, 0, 19),
            "n_lost": widgets.IntSlider(0, 0, 19),
            "loss": widgets.Dropdown(options=LOSSES, value=LOSSES[1]),
            "random_state": widgets.IntSlider(0, 0, 20),
        }
        self.parameters = {}
        self.panel = widgets.VBox()
        self.image = widgets.Image(format="png", layout={"max_width": "100%"})
        self.table = widgets.HTML()
        for name, widget in self.common.items():
            widget.description, widget.style.description_width = name, WIDTH
            widget.observe(self.choose if name == "protocol" else self.update, "value")
        self.upload = widgets.FileUpload(accept=TABLES, description="your own table")
        self.upload.observe(self.receive, "value")
        columns = widgets.HBox([widgets.VBox([*self.common.values(), self.upload]), self.panel])
        self.box = widgets.VBox([columns, self.image, self.table])
        self.choose()

    def choose(self, change=None):
        """Show the parameters of the chosen protocol."""
        known = PROTOCOLS[self.common["protocol"].value].parameters
        self.parameters = {name: make_widget(name, known[name]) for name in known}
        for widget in self.parameters.values():
            widget.observe(self.update, "value")
        self.panel.children = list(self.parameters.values())
        self.update()

    def receive(self, change):
        """Choose the uploaded table as the data set, or show why it cannot be used."""
        if not change["new"]:
            return
        uploaded = change["new"][0]
        path = Path(self.folder.name, Path(uploaded["name"]).name)
        path.write_bytes(uploaded["content"])
        try:
            load(str(path))
        except ValueError as error:
            self.show_error(error)
            return
        chosen = self.common["dataset"]
        chosen.unobserve(self.update, "value")  # new options choose the first one
        chosen.options = [*zip(DATASETS, DATASETS, strict=True), (path.name, str(path))]
        chosen.value = str(path)
        chosen.observe(self.update, "value")
        self.update()

    @property
    def settings(self):
        """The chosen settings."""
        parameters = {name: widget.value for name, widget in self.parameters.items()}
        common = {name: widget.value for name, widget in self.common.items()}
        return Settings(parameters=parameters, **common)

    def update(self, change=None):
        """Run the protocol and show the result, or the reason why there is none."""
        try:
            outcome = run(self.settings)
        except (ValueError, TooFewClients) as error:
            self.show_error(error)
            return
        self.picture.draw(self.settings, outcome)
        self.image.value = self.picture.png()
        self.table.value = summarise(self.settings, outcome)

    def show_error(self, error):
        """Show an error below the picture, which remains."""
        text = str(error).replace(f"{self.folder.name}/", "")
        self.table.value = f"<p><b>{type(error).__name__}</b>: {html.escape(text)}</p>"


def make_widget(name, parameter):
    """Return the control of a parameter."""
    style = {"description_width": WIDTH}
    if isinstance(parameter, Choice):
        return widgets.Dropdown(options=parameter.values, description=name, style=style)
    low, high, step, first = parameter
    make = widgets.IntSlider if isinstance(step, int) else widgets.FloatSlider
    return make(first, min=low, max=high, step=step, description=name, style=style)
