import gc
import re
from numbers import Integral, Real
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from all_protocols import OURS, PROTOCOLS
from scipy.sparse import csr_array
from sklearn.base import clone

from fedlib import FederatedKMeans
from fedlib.core.client import Client
from fedlib.core.estimator import Federated
from fedlib.core.in_process import InProcess
from fedlib.core.messages import Declined, Done, Labels, Message, decode
from fedlib.core.parameters import Interval, StrOptions, plain_value
from fedlib.core.protocol import Reject, TooFewClients, run
from fedlib.core.registry import protocols
from fedlib.testing import Recorder

# A small estimator: is a row above the common mean? ----------------------------------------------


class ToyMean(Message):
    discloses = "a client's number of rows and their sum"
    n: int
    total: float


class ToyAskMean(Message):
    discloses = "nothing"
    reply = ToyMean


class ToySplit(Message):
    discloses = "the mean of all clients' rows"
    asks_for_data = False
    mean: float


class SideClient(Client):
    def __init__(self, X):
        self.X = np.asarray(X, float)
        if self.X.ndim != 2:
            raise ValueError(f"X must be a table, got {self.X.ndim} dimensions")

    def handle(self, request):
        if isinstance(request, ToyAskMean):
            if (self.X == 666).any():
                raise ArithmeticError("my secret is 666")
            return ToyMean(len(self.X), float(self.X[:, 0].sum()))
        self.state = Labels((self.X[:, 0] > request.mean).astype(np.int64))
        return Done()


class Failing(SideClient):
    """A client that raises an error at the first request, if there is one."""

    def __init__(self, error):
        super().__init__([[1.0]])
        self.error = error

    def handle(self, request):
        if self.error is not None:
            raise self.error
        return super().handle(request)


class Sides(Federated):
    client_class = SideClient
    _parameter_constraints: ClassVar = {"shift": [Interval(Real, 0, 1, closed="both")]}

    def __init__(self, shift=0.0):
        self.shift = shift

    def _flow(self):
        replies = yield ToyAskMean()
        mean = sum(r.total for r in replies.values()) / sum(r.n for r in replies.values())
        yield ToySplit(mean + self.shift)
        return mean

    def _set_model(self, model):
        super()._set_model(model)
        self.mean_ = model


PARTS = [[[0.0], [1.0]], [[2.0]], [[9.0], [3.0]]]


def as_lists(labels):
    return [None if part is None else part.tolist() for part in labels]


def test_fit_returns_the_estimator():
    model = Sides()
    assert model.fit(PARTS) is model
    assert model.mean_ == 3.0
    assert as_lists(model.labels_) == [[0, 0], [0], [1, 0]]
    assert model.ledger_.conversation() == ["ToyAskMean", "ToyMean", "ToySplit", "Done"]


def test_it_is_a_scikit_learn_estimator():
    model = Sides(shift=0.5)
    assert model.get_params() == {"shift": 0.5}
    assert repr(model) == "Sides(shift=0.5)"
    again = clone(model.fit(PARTS))
    assert not hasattr(again, "mean_")
    assert again.set_params(shift=0.25).shift == 0.25


def test_the_protocol_can_be_driven_by_hand():
    assert next(Sides().protocol()) == ToyAskMean()


def test_parameters_are_checked_first():
    """An invalid parameter is reported before the data are read."""
    with pytest.raises(ValueError, match=r"'shift' parameter of Sides must be a float in .* Got 2"):
        Sides(shift=2).fit("no data at all")


@pytest.mark.parametrize("parts", [[], (), np.empty((0, 2, 1))])
def test_no_parts(parts):
    with pytest.raises(ValueError, match="there are no clients"):
        Sides().fit(parts)


@pytest.mark.parametrize("parts", [tuple(PARTS), np.arange(6.0).reshape(3, 2, 1)])
def test_any_sequence_of_parts(parts):
    assert len(Sides().fit(parts).labels_) == 3


def test_the_error_names_the_invalid_part():
    with pytest.raises(ValueError, match=r"^parts\[1\]: X must be a table, got 1 dimensions"):
        Sides().fit([[[0.0]], [1.0], [[2.0]]])


def test_a_table_instead_of_parts():
    """The error says what to pass; a list of rows is an error in parts[0]."""
    for table in (np.zeros((5, 2)), pd.DataFrame({"a": [0.0, 1.0]}), csr_array(np.eye(4))):
        with pytest.raises(ValueError, match=r"got one table; for one client pass \[X\]"):
            Sides().fit(table)
    with pytest.raises(ValueError, match=r"parts\[0\]: .*for one client pass \[X\]"):
        Sides().fit([[1.0, 2.0], [3.0, 4.0]])


def test_parts_with_the_names_of_clients():
    named = {f"site {i}": part for i, part in enumerate(PARTS)}
    for parts in (named, pd.Series(named)):
        model = Sides().fit(parts, passive=[1])
        assert {entry.receiver for entry in model.ledger_} == {"server", *named}
    with pytest.raises(ValueError, match="the names of clients must be distinct"):
        Sides().fit({1: PARTS[0], "1": PARTS[1]})


def test_parts_that_do_not_fit_together():
    text = "clients disagree on the number of features: 1 at '0', '2'; 2 at '1'"
    with pytest.raises(ValueError, match=re.escape(text)):
        Sides().fit([[[0.0]], [[1.0, 2.0]], [[2.0]]])


def test_passive_parts():
    """They get labels from the model of the other clients; their rows do not count."""
    model = Sides().fit(PARTS, passive=[2])
    assert model.mean_ == 1.0
    assert as_lists(model.labels_) == [[0, 0], [1], [1, 1]]
    frame = model.ledger_.to_frame()
    assert frame[frame.sender == "2"].message.tolist() == ["Declined", "Done"]


@pytest.mark.parametrize(
    "passive",
    [[2], (2,), {2}, np.array([2]), range(2, 3), iter([2]), {2: "yes"}, (i for i in [2])],
)
def test_any_collection_of_passive_parts(passive):
    """Any kind of collection of part numbers is accepted."""
    assert Sides().fit(PARTS, passive=passive).mean_ == 1.0


@pytest.mark.parametrize("passive", [[3], [-1], [0, 7], ["0"], [0.5]])
def test_passive_out_of_range(passive):
    with pytest.raises(ValueError, match="passive must (be|contain)"):
        Sides().fit(PARTS, passive=passive)


def test_all_passive():
    with pytest.raises(ValueError, match="every client is passive"):
        Sides().fit(PARTS, passive=[0, 1, 2])


def test_a_lost_client_has_no_labels():
    """With a smaller ``min_clients`` the others continue; the entry of the lost one is None."""
    parts = [*PARTS, [[666.0]]]
    with pytest.warns(UserWarning, match=r"parts\[3\] left the run: ArithmeticError"):
        model = Sides().fit(parts, min_clients=3)
    assert as_lists(model.labels_) == [[0, 0], [0], [1, 0], None]
    assert model.ledger_.lost == {"3": "ArithmeticError at ToyAskMean, step 1"}


def test_a_run_in_this_process_ends_with_the_error_of_the_client():
    """By default all clients must remain. The notes name the client and the step."""
    with pytest.raises(ArithmeticError) as caught:
        Sides().fit([[[1.0]], [[666.0]]])
    assert caught.value.__notes__ == [
        "client '1' raised this. 1 of 2 clients remain, 2 are needed."
        " Lost: '1': ArithmeticError at ToyAskMean, step 1"
    ]
    assert caught.value.__context__ is None


ERRORS = {
    "a": None,
    "b": KeyError("column"),
    "c": ValueError("too far"),
    "d": KeyError("column"),
}


def test_of_several_errors_at_one_step_the_first_is_raised_and_the_others_are_notes():
    clients = {name: Failing(error) for name, error in ERRORS.items()}
    with pytest.raises(KeyError, match="client 'b' raised this. 1 of 4 clients remain") as caught:
        Sides().fit(InProcess(clients))
    assert caught.value.__notes__[1:] == ["client 'c' raised ValueError('too far')"]
    with pytest.raises(TooFewClients, match="'b': KeyError at ToyAskMean") as ended:
        run(Sides().protocol(), InProcess(clients))
    assert isinstance(ended.value.__cause__, KeyError)


def test_an_error_of_an_earlier_step_does_not_hide_why_the_run_ended():
    """One client failed and was not needed; then the server rejected the reply of another one."""
    clients = {name: SideClient(part) for name, part in zip("abc", PARTS, strict=True)}
    clients["a"] = Failing(KeyError("x"))

    def flow():
        yield ToyAskMean()
        yield ToyAskMean()
        yield Reject({"b": "impossible"})

    class Rejecting(Sides):
        def _flow(self):
            return flow()

    with pytest.raises(TooFewClients, match="'b': InvalidReply at ToyAskMean, step 2"):
        Rejecting().fit(InProcess(clients), min_clients=2)


@pytest.mark.parametrize("min_clients", [0, 4])
def test_min_clients_out_of_range(min_clients):
    with pytest.raises(ValueError, match=rf"min_clients must be in 1\.\.3.*got {min_clients}"):
        Sides().fit(PARTS, min_clients=min_clients)


def test_a_transport_instead_of_parts(relay):
    """Labels stay with the clients, and those of an earlier fit are removed."""
    clients = {name: SideClient(part) for name, part in zip("xyz", PARTS, strict=True)}
    model = Sides().fit([[[0.0]]])
    assert hasattr(model, "labels_")
    assert model.fit(InProcess(clients)) is model
    assert model.mean_ == 3.0
    assert not hasattr(model, "labels_")
    assert [client.state.labels.tolist() for client in clients.values()] == [[0, 0], [0], [1, 0]]
    assert {e.receiver for e in model.ledger_} == {"server", "x", "y", "z"}


def test_passive_applies_to_parts():
    transport = InProcess({"x": SideClient(PARTS[0])})
    with pytest.raises(ValueError, match="a client joins as passive"):
        Sides().fit(transport, passive=[0])


def test_a_client_may_join_as_passive(relay):
    clients = {name: SideClient(part) for name, part in zip("xyz", PARTS, strict=True)}
    clients["z"].passive = True
    transport = relay(clients)
    assert Sides().fit(transport).mean_ == 1.0
    assert decode(transport.exchanges[0].reply_bytes["z"]) == Declined()
    assert clients["z"].state.labels.tolist() == [1, 1]


def test_each_fit_has_its_own_ledger():
    model = Sides().fit(PARTS)
    first = model.ledger_
    assert model.fit(PARTS[:2]).ledger_ is not first
    assert len(first) == 12
    assert len(model.ledger_) == 8


def test_a_failed_fit_changes_nothing():
    model = Sides().fit(PARTS)
    before = dict(vars(model))
    with pytest.raises(ArithmeticError, match="ArithmeticError at ToyAskMean, step 1"):
        model.fit([[[666.0]]])
    assert vars(model) == before


def test_a_fitted_estimator_does_not_keep_the_data():
    """After ``fit``, nothing refers to the clients and their data."""
    model = Sides().fit(PARTS)
    gc.collect()
    assert not [item for item in gc.get_objects() if type(item) is SideClient]
    assert "labels_" in vars(model)


def test_a_fitted_estimator_keeps_its_model_when_the_garbage_is_collected():
    """Python 3.13.0 emptied it, if fit had given it the ``__dict__`` of another estimator."""

    class Circular(Sides):
        def _set_model(self, model):
            self.model_ = SimpleNamespace(mean=model)
            self.circle = self

    model = Circular().fit(PARTS)
    gc.collect()
    assert vars(model.model_) == {"mean": 3.0}


def test_the_base_has_no_protocol():
    with pytest.raises(NotImplementedError):
        Federated().protocol()


@pytest.mark.parametrize("passive", [[False, True, True], [False] * 3, np.array([True]), True, 1])
def test_a_mask_is_refused(passive):
    """Its entries would be the numbers 0 and 1, so a client that must not share would share."""
    with pytest.raises(ValueError, match="passive must be a collection of indices of parts"):
        Sides().fit(PARTS, passive=passive)


@pytest.mark.parametrize("parts", [None, "abc", (part for part in PARTS)])
def test_parts_are_a_list(parts):
    with pytest.raises(
        ValueError, match="a list with one part per client, a mapping with their names, or a t"
    ):
        Sides().fit(parts)


# Parameters of NumPy's types ---------------------------------------------------------------------


def as_numpy(value):
    """Return a plain value as the scalar of NumPy that a sweep over an array would give."""
    return np.array(value)[()] if isinstance(value, str | int | float) else value


@pytest.mark.parametrize("name", sorted(OURS))
def test_parameters_may_be_scalars_of_numpy(name):
    """The messages are the same to the byte."""
    parameters, parts = PROTOCOLS[name]
    conversations = []
    for convert in (lambda value: value, as_numpy):
        given = {key: convert(value) for key, value in parameters.items()}
        estimator = protocols()[name](**given)
        if "random_state" in given:
            estimator.set_params(random_state=0)
        clients = {str(i): estimator.client_class(part) for i, part in enumerate(parts())}
        if name == "ppdbdc":
            clients = {n: estimator.client_class(c.X, random_state=0) for n, c in clients.items()}
        estimator.fit(recorder := Recorder(clients))
        conversations.append(recorder.all_bytes)
    assert conversations[0] == conversations[1]


@pytest.mark.parametrize(
    ("value", "constraints", "plain"),
    [
        (np.int8(3), [Interval(Integral, 1, None, closed="left")], 3),
        (np.int64(3), [Interval(Real, 1, None, closed="left")], 3.0),
        (np.float32(0.5), [Interval(Real, 0, 1, closed="both"), None], 0.5),
        (2, [Interval(Integral, 1, None, closed="left"), Interval(Real, 0, 1, closed="both")], 2),
        (np.bool_(True), ["boolean"], True),
        (np.str_("a"), [StrOptions({"a"})], "a"),
        (None, [Interval(Real, 0, 1, closed="both"), None], None),
    ],
)
def test_a_plain_value_has_the_type_that_its_constraint_names(value, constraints, plain):
    found = plain_value(value, constraints)
    assert found == plain
    assert type(found) is type(plain)


def test_the_parameters_of_the_estimator_stay_as_given():
    model = FederatedKMeans(np.int64(2), tol=np.float32(0.5), init=[[0.0], [8.0]])
    model.fit([[[0.0], [1.0]], [[8.0], [9.0]]])
    assert type(model.n_clusters) is np.int64
    assert type(model.tol) is np.float32
