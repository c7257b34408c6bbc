"""The transport to the partitions of a data set, with workers in this process."""

from functools import partial

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from all_protocols import PROTOCOLS, fitted
from sklearn.base import clone

from fedlib import (
    FederatedKMeans,
    FederatedPipeline,
    FederatedXGBClassifier,
    HorizontalDBSCAN,
    Schema,
)
from fedlib.clustering.density.horizontal import (
    CellCounts,
    HorizontalDBSCANClient,
    horizontal_dbscan,
)
from fedlib.core.client import Client, handles
from fedlib.core.journal import JournalError
from fedlib.core.messages import Message, encode
from fedlib.core.protocol import Combined, LocalTransport, TooFewClients, Transport, run
from fedlib.core.registry import protocols
from fedlib.testing import Recorder
from fedlib.transports.dask import Dask, predict

PARTS = [[[0.1], [0.3], [1.2]], [[1.9], [2.5], [9.0]], [[0.2], [5.0]]]


def functions(parts):
    """Return one function per part that returns it."""
    return [partial(np.array, part) if isinstance(part, list) else _give(part) for part in parts]


def _give(part):
    return lambda: part


def model(**options):
    """Return an estimator that has not been fitted."""
    return HorizontalDBSCAN(cell_size=1.0, min_samples=2, **options)


def same_labels(labels, parts):
    """Return whether a Dask Series has the labels of each part of a list."""
    return np.array_equal(np.asarray(labels), np.concatenate(parts))


def _fit_both(name, cluster, keep):
    parameters, make_parts = PROTOCOLS[name]
    parts = make_parts()
    here = protocols()[name](**parameters).fit(parts)
    transport = Dask(functions(parts), cluster, keep=keep, combine=False)
    return here, protocols()[name](**parameters).fit(transport)


@pytest.mark.parametrize(
    ("name", "keep"),
    [(name, ("memory", "reload")[i % 2]) for i, name in enumerate(PROTOCOLS)]
    + [
        pytest.param(name, ("reload", "memory")[i % 2], marks=pytest.mark.dask)
        for i, name in enumerate(PROTOCOLS)
    ],
)
def test_every_protocol_gives_the_same_as_in_process(name, keep, cluster):
    """The models, the messages and the labels are equal, byte by byte."""
    here, there = _fit_both(name, cluster, keep)
    assert fitted(there) == fitted(here)
    assert there.ledger_ == here.ledger_
    assert hasattr(there, "labels_") == hasattr(here, "labels_")
    if isinstance(getattr(here, "labels_", None), list):
        assert same_labels(there.labels_, here.labels_)
        assert there.labels_.dtype == here.labels_[0].dtype


def test_a_toy_with_the_conversation(cluster):
    """Cells 0 and 1 are dense and adjacent; 2 is adjacent to 1; 5 and 9 have one point each."""
    transport = Dask(functions(PARTS), cluster)
    assert isinstance(transport, LocalTransport)
    assert isinstance(transport, Transport)
    there = model().fit(transport)
    assert there.ledger_.conversation() == [
        *("CountCells", "CellCounts", "Combined", "AssignCells", "Done")
    ]
    assert there.labels_.compute().tolist() == [0, 0, 0, 0, 0, -1, 0, -1]
    assert there.labels_.npartitions == 3


def test_a_pipeline(cluster):
    """Labels of a client inside another one are read, too."""
    tables = [pd.DataFrame({"x": [0.0, 1.0, np.nan]}), pd.DataFrame({"x": [8.0, 9.0]})]
    estimator = FederatedPipeline(
        FederatedKMeans(2, method="one_shot", random_state=0), impute="drop"
    )
    here = clone(estimator).fit(tables)
    there = clone(estimator).fit(Dask([_give(table) for table in tables], cluster))
    assert fitted(there) == fitted(here)
    assert same_labels(there.labels_, here.labels_)


def test_a_schema(cluster):
    """The workers bring their parts into the agreed form."""
    fields = [
        {"name": "x", "type": "number", "constraints": {"minimum": 0, "maximum": 10}},
        {"name": "sex", "type": "string", "constraints": {"enum": ["f", "m"]}},
    ]
    schema = Schema({"schema": {"fields": fields}})
    tables = [
        pd.DataFrame({"x": [0.0, 1.0, 9.0], "sex": ["f", "m ", "f"]}),
        pd.DataFrame({"sex": ["m", "f"], "x": [8.0, 9.0]}),
    ]
    inner = FederatedKMeans(2, method="one_shot", random_state=0)
    estimator = FederatedPipeline(inner, schema=schema, scale="minmax", encode="one_hot")
    here = clone(estimator).fit(tables)
    there = clone(estimator).fit(Dask([_give(table) for table in tables], cluster))
    assert fitted(there) == fitted(here)
    assert same_labels(there.labels_, here.labels_)


# The data


def test_a_data_frame(cluster):
    """The labels have its index and divisions, so they can be a column of it."""
    frame = pd.DataFrame({"x": np.concatenate(PARTS)[:, 0]}, index=range(10, 18))
    data = dd.from_pandas(frame, npartitions=3)
    there = model().fit(Dask(data, cluster))
    here = model().fit(
        [data.partitions[i].compute(scheduler="synchronous") for i in range(data.npartitions)]
    )
    assert fitted(there) == fitted(here)
    assert there.labels_.divisions == data.divisions
    together = data.assign(label=there.labels_).compute()
    assert together["label"].tolist() == np.concatenate(here.labels_).tolist()
    assert together.index.tolist() == frame.index.tolist()


def test_an_array_with_several_chunks_of_columns(cluster):
    X = np.arange(12.0).reshape(6, 2) % 5
    there = model().fit(Dask(da.from_array(X, chunks=(4, 1)), cluster))
    here = model().fit([X[:4], X[4:]])
    assert fitted(there) == fitted(here)
    assert there.labels_.chunks == ((4, 2),)
    assert same_labels(there.labels_, here.labels_)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # in Dask, with pandas 3.1
def test_files(cluster, tmp_path):
    """The labels can be written beside them as Parquet."""
    paths = [tmp_path / "a.parquet", tmp_path / "b.npy"]
    pd.DataFrame({"x": [0.1, 0.3]}).to_parquet(paths[0])
    np.save(paths[1], np.array([[1.2], [1.9], [7.0]]))
    there = model().fit(Dask(paths, cluster, keep="reload"))
    there.labels_.to_frame().to_parquet(tmp_path / "labels")
    written = pd.read_parquet(tmp_path / "labels" / "part.1.parquet")
    assert written["label"].tolist() == [0, 0, -1]


def test_a_tuple_of_collections(cluster):
    """Boosting takes (X, y); its labels are classes."""
    X = np.linspace(-1, 1, 40)[:, None]
    y = np.where(np.sin(9 * X[:, 0]) > 0, "well", "ill")
    frame = dd.from_pandas(pd.DataFrame(X, columns=["x"]), npartitions=2)
    target = dd.from_pandas(pd.Series(y), npartitions=2)
    estimator = FederatedXGBClassifier(n_trees=3, max_depth=3, min_child_weight=0.1)
    there = clone(estimator).fit(Dask((frame, target), cluster))
    here = clone(estimator).fit([(X[:20], y[:20]), (X[20:], y[20:])])
    assert there.labels_.compute().tolist() == np.concatenate(here.labels_).tolist()
    assert set(there.labels_.compute()) == {"ill", "well"}


def test_a_tuple_with_base_margins(cluster):
    """What a part lacks before them is None."""
    X = np.linspace(-1, 1, 40)[:, None]
    y, margins = (np.abs(X[:, 0]) > 0.3).astype(int), 3 * X[:, 0]
    estimator = FederatedXGBClassifier(n_trees=2, max_depth=2, min_child_weight=0.1)
    halves = [slice(20), slice(20, None)]
    here = clone(estimator).fit([(X[i], y[i], None, None, margins[i]) for i in halves])
    arrays = [da.from_array(one, chunks=(20, 1)[: one.ndim]) for one in (X, y, margins)]
    there = clone(estimator).fit(Dask((*arrays[:2], None, None, arrays[2]), cluster))
    assert fitted(there) == fitted(here)
    assert same_labels(there.labels_, here.labels_)


def test_a_target(cluster, tmp_path):
    """`y` lies next to the rows, in a collection or in files of its own."""
    X = np.linspace(-1, 1, 40)[:, None]
    y = (np.abs(X[:, 0]) > 0.3).astype(int)
    estimator = FederatedXGBClassifier(n_trees=2, max_depth=2, min_child_weight=0.1)
    here = clone(estimator).fit([(X[:20], y[:20]), (X[20:], y[20:])])
    files = {}
    for name, values in (("X", X), ("y", y)):
        files[name] = [tmp_path / f"{name}{i}.npy" for i in range(2)]
        for path, half in zip(files[name], np.split(values, 2), strict=True):
            np.save(path, half)
    arrays = da.from_array(X, chunks=(20, 1)), da.from_array(y, chunks=20)
    for rows, target in (arrays, (files["X"], files["y"]), (files["X"], arrays[1])):
        there = clone(estimator).fit(Dask(rows, cluster, y=target))
        assert fitted(there) == fitted(here)
        assert same_labels(there.labels_, here.labels_)


def test_secure_sums_are_refused_before_any_task(cluster):
    """All partitions belong to one user, so no client has a key."""
    fields = [{"name": "x", "type": "number", "constraints": {"minimum": 0, "maximum": 9}}]
    fields[0]["constraints"]["required"] = True
    inner = FederatedKMeans(
        2, method="lloyd", init=[[0.0], [5.0]], bounds={"x": (0, 9)}, secure=True
    )
    outer = FederatedPipeline(
        clone(inner).set_params(bounds=None), schema=Schema({"schema": {"fields": fields}})
    )
    for estimator, name in ((inner, "secure"), (outer, "estimator__secure")):
        transport = Dask(functions(PARTS), cluster)
        with pytest.raises(ValueError, match=f"^{name} must be False over Dask, got True: .* list"):
            estimator.fit(transport)
        assert transport.ledger is None


def test_predict_maps_over_partitions(cluster):
    there = model().fit(Dask(functions(PARTS), cluster))
    X = np.array([[0.5], [2.5], [30.0], [1.0]])
    wanted = there.predict(X).tolist()
    assert predict(there, da.from_array(X, chunks=(3, 1))).compute().tolist() == wanted
    frame = dd.from_pandas(pd.DataFrame(X, columns=["x"], index=[3, 4, 5, 6]), npartitions=2)
    labels = predict(there, frame)
    assert labels.divisions == frame.divisions
    assert labels.compute().tolist() == wanted
    with pytest.raises(ValueError, match="X must be a Dask DataFrame or Array, got a ndarray"):
        predict(there, X)


# Combined replies


def test_combined_counts(cluster):
    """Forty replies become three, and these one. The result and the labels are the same."""
    parts = [part + i % 7 for i, part in enumerate(np.zeros((40, 3, 2)))]
    here = model().fit(parts)
    there = model().fit(Dask(functions(parts), cluster))
    assert fitted(there) == fitted(here)
    assert same_labels(there.labels_, here.labels_)
    sent = there.ledger_.to_frame().query("step == 1 and receiver == 'server'")
    assert sent["message"].tolist() == ["CellCounts"] + ["Combined"] * 39
    assert sent["sender"].tolist() == [str(i) for i in range(40)]
    one = there.ledger_.to_frame().query("sender == '0'")["bytes"].iloc[0]
    assert one == len(encode(CellCounts(here.cells_, here.cell_counts_)))


def test_a_protocol_that_compares_clients_gets_every_reply(cluster):
    """`DensitySuggestion` sends the same request, but needs the counts of each client."""
    here, there = _fit_both("suggest", cluster, "memory")
    assert "Combined" not in there.ledger_.conversation()
    assert fitted(there) == fitted(here)


def test_the_limit_of_cells_grows_with_a_combined_reply(cluster):
    parts = [[[0.0]], [[1.0]], [[2.0]]]
    assert len(model(max_cells=1).fit(Dask(functions(parts), cluster)).cells_) == 3
    wide = [*parts, [[float(x)] for x in range(10, 19)]]
    with pytest.raises(TooFewClients, match="0 of 4 clients remain"):
        model(max_cells=1).fit(Dask(functions(wide), cluster))


def test_clients_that_disagree_are_not_combined(cluster):
    """Then the server can see who is in the minority."""
    parts = [[[0.0]], [[0.5]], [[1.0, 2.0]]]
    there = model().fit(Dask(functions(parts), cluster), min_clients=2)
    assert there.ledger_.lost == {"2": "InvalidReply at CountCells, step 1"}
    assert there.cells_.tolist() == [[0]]
    assert "Combined" not in there.ledger_.conversation()


class Weights(Message):
    discloses = "a weight"
    weight: float

    @staticmethod
    def combine(replies):
        total = 0.0
        for reply in replies:
            total += reply.weight
        return Weights(total)


class Weigh(Message):
    discloses = "nothing"
    reply = Weights


class Scale(Client):
    combinable = (Weights,)

    def __init__(self, X):
        self.X = np.asarray(X)

    @handles(Weigh)
    def weigh(self, request):
        return Weights(float(self.X))


def weigh():
    replies = yield Weigh()
    return {name: reply.weight for name, reply in replies.items()}


def test_floats_are_combined_in_a_fixed_order(cluster):
    """Groups of 16 neighbours, then the groups: the order of arrival does not change a bit."""
    weights = np.random.default_rng(0).normal(size=50) * 10.0 ** np.arange(50)
    groups = [sum(weights[i : i + 16].tolist()) for i in range(0, 50, 16)]
    transport = Dask([partial(float, weight) for weight in weights], cluster)
    for _ in range(2):
        transport.create_clients(Scale, [{}] * 50)
        assert run(weigh(), transport) == {"0": sum(groups)}


class Misplaced(Recorder):
    """A transport that may combine, but names a client that has no reply."""

    combines = True

    def exchange(self, requests):
        return super().exchange(requests) | {"b": encode(Combined("c"))}


def test_a_reply_that_is_nowhere_combined_is_invalid():
    """Nothing is lost silently."""
    clients = {name: Scale(1.0) for name in "ab"}
    with pytest.raises(TooFewClients, match="'b': InvalidReply at Weigh, step 1"):
        run(weigh(), Misplaced(clients))


def test_only_a_transport_that_combines_may_say_so():
    clients = {name: Scale(1.0) for name in "ab"}
    transport = Misplaced(clients)
    transport.combines = False
    with pytest.raises(TooFewClients, match="'b': InvalidReply at Weigh, step 1"):
        run(weigh(), transport)


# Failures


def test_a_partition_that_cannot_be_read(cluster, tmp_path):
    """Its client is lost; the error is known, because all partitions belong to one user."""
    paths = [tmp_path / "a.npy", tmp_path / "missing.npy"]
    np.save(paths[0], np.array([[0.1], [0.3]]))
    for keep in ("memory", "reload"):
        with pytest.raises(TooFewClients, match="'1': FileNotFoundError at CountCells") as caught:
            model().fit(Dask(paths, cluster, keep=keep))
        assert "missing.npy" in str(caught.value.__cause__)
        there = model().fit(Dask(paths, cluster, keep=keep), min_clients=1)
        assert there.labels_.compute().tolist() == [0, 0]
        assert there.labels_.npartitions == 1


def test_an_error_in_a_client(cluster):
    parts = [*PARTS, [[np.nan]]]
    with pytest.raises(TooFewClients) as caught:
        model().fit(Dask(functions(parts), cluster))
    assert "partition 3: ValueError: Input contains NaN" in str(caught.value.__cause__)
    there = model().fit(Dask(functions(parts), cluster), min_clients=3)
    assert fitted(there) == fitted(model().fit(PARTS))


class Liar(HorizontalDBSCANClient):
    """A client whose counts are impossible if its points are large."""

    def count_cells(self, request):
        reply = super().count_cells(request)
        if self.X.max(initial=0) < 100:
            return reply
        return CellCounts(reply.cells[::-1], reply.counts)

    handlers = HorizontalDBSCANClient.handlers


def test_a_liar_leaves_and_the_others_are_combined(cluster):
    transport = Dask(functions([*PARTS, [[100.0], [200.0]]]), cluster)
    transport.create_clients(Liar, [{}] * 4)
    flow = horizontal_dbscan(1.0, 2, "nearest", "point", "faces", None, None)
    found = run(flow, transport, min_clients=3)
    assert transport.ledger.lost == {"3": "InvalidReply at CountCells, step 1"}
    assert found.cells.tolist() == model().fit(PARTS).cells_.tolist()


def test_passive_partitions_receive_the_result(cluster):
    there = model().fit(Dask(functions(PARTS), cluster), passive=[1])
    here = model().fit(PARTS, passive=[1])
    assert fitted(there) == fitted(here)
    assert same_labels(there.labels_, here.labels_)
    with pytest.raises(ValueError, match=r"passive must contain indices of parts, 0..2; got \[3\]"):
        model().fit(Dask(functions(PARTS), cluster), passive=[3])


def test_an_interrupt_cancels_the_tasks(cluster, monkeypatch):
    transport = Dask(functions(PARTS), cluster)
    cancelled = []

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("distributed.wait", interrupt)
    monkeypatch.setattr(cluster, "cancel", cancelled.extend)
    with pytest.raises(KeyboardInterrupt):
        model().fit(transport)
    assert cancelled


@pytest.mark.parametrize(
    ("partitions", "options", "message"),
    [
        ([], {}, r"partitions must be .*; got \[\]"),
        (np.zeros(3), {}, "partitions must be .*; got a ndarray"),
        ("a.npy", {}, "partitions must be .*; got 'a.npy'"),
        (["a.csv"], {}, r"partitions\[0\] must be a function or the path .*; got 'a.csv'"),
        ((), {}, r"a tuple's members must have equally many partitions, got \[\]"),
        ((da.zeros(4, chunks=2), da.zeros(4)), {}, r"equally many partitions, got \[2, 1\]"),
        (["a.npy"], {"y": ["b.npy", "c.npy"]}, r"equally many partitions, got \[1, 2\]"),
        (da.zeros((1, 1, 1)), {}, "an Array must have one or two axes, got 3"),
        (["a.npy"], {"keep": "disk"}, "keep must be one of 'memory', 'reload'; got 'disk'"),
        (["a.npy"], {"lost": "never"}, "lost must be one of 'recompute', 'client'; got 'never'"),
        (["a.npy"], {"worker_timeout": 0}, "worker_timeout must be positive, got 0"),
    ],
)
def test_wrong_arguments(partitions, options, message, cluster):
    with pytest.raises(ValueError, match=message):
        Dask(partitions, cluster, **options)


def test_run_needs_clients(cluster):
    flow = horizontal_dbscan(1.0, 2, "nearest", "point", "faces", None, None)
    with pytest.raises(ValueError, match="call create_clients before run"):
        run(flow, Dask(functions(PARTS), cluster))


def test_progress(cluster, capsys):
    """A bar per step, with the name of the request."""
    model().fit(Dask(functions(PARTS), cluster, progress=True, combine=False))
    shown = capsys.readouterr().err
    assert "CountCells: 100%" in shown
    assert "AssignCells: 100%" in shown


# A journal


class Killed(BaseException):
    """Takes the place of a signal that cannot be caught."""


class Mortal(Dask):
    """A transport whose process dies after some exchanges."""

    n_left = 3

    def exchange(self, requests):
        self.n_left -= 1
        if self.n_left < 0:
            raise Killed
        return super().exchange(requests)


@pytest.mark.parametrize("name", ["horizontal-dbscan", "xgboost"])
def test_a_run_continues_from_its_journal(name, cluster, tmp_path):
    """The states are computed again, and only the requests that changed them are repeated."""
    parameters, make_parts = PROTOCOLS[name]
    parts = make_parts()
    estimator, path = protocols()[name](**parameters), tmp_path / "run.journal"
    here = clone(estimator).fit(Dask(functions(parts), cluster))
    killed, n_kills = True, 0
    while killed:
        mortal = Mortal(functions(parts), cluster)
        mortal.n_left = 1 + 3 * n_kills
        try:
            there = clone(estimator).fit(mortal, journal=path)
            killed = False
        except Killed:
            n_kills += 1
    assert n_kills > 0
    assert fitted(there) == fitted(here)
    assert there.ledger_ == here.ledger_
    assert np.array_equal(there.labels_.compute(), here.labels_.compute())
    replayed = clone(estimator).fit(Dask(functions(parts), cluster), journal=path)
    assert np.array_equal(replayed.labels_.compute(), here.labels_.compute())


def test_a_journal_of_other_data(cluster, tmp_path):
    path = tmp_path / "run.journal"
    model().fit(Dask(functions(PARTS), cluster), journal=path)
    with pytest.raises(JournalError, match="the digest of the data of 1"):
        model().fit(Dask(functions([PARTS[0], PARTS[2], PARTS[2]]), cluster), journal=path)


def test_the_journal_contains_no_labels(cluster, tmp_path):
    """A journal in process contains the states; 10,000 labels would be 80 kB."""
    parts = [np.zeros((10_000, 1))] * 2
    model().fit(Dask(functions(parts), cluster), journal=tmp_path / "dask.journal")
    model().fit(parts, journal=tmp_path / "here.journal")
    assert (tmp_path / "here.journal").stat().st_size > 160_000
    assert (tmp_path / "dask.journal").stat().st_size < 5_000
