"""Test the search for passive clients, its verdicts, and the explanation by seeds."""

import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="module")
def module(modules):
    return modules("study.clustering.passive_search")


def outcomes_of(module):
    """Return outcomes in which each choice and each parity of the seed has its own column."""

    def outcomes(edition, passive, seeds):
        scores = np.arange(len(module.CELLS)) / 100 + sum(passive) / 1000
        which = np.array([seed % 2 for seed in seeds])
        return np.array([scores, scores + 0.0001]), which

    return outcomes


@pytest.fixture
def found(module):
    """Return a search, the printed columns with one misprint, and what was found."""
    outcomes = outcomes_of(module)
    search = module.Search(outcomes, n_clients=4, n_orders=5, n_few=2, n_best=2)
    keys = [("M1", "passive 10%", "I"), ("M1", "passive 20%", "I")]
    index = pd.MultiIndex.from_tuples(keys, names=["source", "table", "run"])
    rows = [outcomes("M1", (2,), [0])[0][1], outcomes("M1", (1, 3), [0])[0][0]]
    printed = pd.DataFrame(rows, index, module.CELLS)
    printed.iloc[1, 7] += 0.02
    outcomes_found = {key: search.find(key, printed.loc[key].to_numpy()) for key in keys}
    rows = [
        dict(zip(("source", "table", "run"), key, strict=True)) | row
        for key, outcome in outcomes_found.items()
        for row in module.by_cell(outcome)
    ]
    return search, printed, module.by_column(pd.DataFrame(rows))


def test_search_finds_the_choice_and_the_first_order(found):
    _, _, rows = found
    assert rows["passive"].iloc[0] == (2,)
    assert rows["agree"].tolist() == [15, 14]
    assert rows[["orders", "order"]].iloc[0].tolist() == [2, 1]  # the odd seeds of 0 to 4


def test_misprint_is_the_cell_that_disagrees(found, module):
    search, printed, rows = found
    key = printed.index[1]
    misprint = search.examine(key, rows.loc[key], printed.loc[key].to_numpy())
    misprints = pd.DataFrame([dict(zip(printed.index.names, key, strict=True)) | misprint])
    assert misprints["metric"].tolist() == [module.CELLS[7][1]]
    assert misprints["slip"].tolist() == ["one digit"]
    judge = module.Verdicts(rows, misprints, printed, 5)
    row = {"source": "M1", "table": "passive 20%", "run": "I"}
    row |= dict(zip(("condition", "metric"), module.CELLS[7], strict=True))
    value, low, high, status, note = judge.of(row | {"published": f"{printed.iloc[1, 7]:.4f}"})
    assert low <= value <= high
    assert status == "misprint"
    assert note.endswith("slip: one digit")


def test_seeds_that_draw_the_choices(module):
    choices = list(module.drawn(10, 2, range(7, 12)))
    index = pd.MultiIndex.from_product([["M1"], ["passive 20%"], module.RUNS])
    found = pd.DataFrame({"passive": choices}, index.set_names(["source", "table", "run"]))
    rows, starts = module.explain_by_seeds(found, 10, 20)
    assert rows["starts as numbered"].tolist() == [1]
    assert rows["first of these"].tolist() == [7]
    assert starts == {"M1": rows["renumbered"][0]}


def test_choices_and_their_names(module):
    assert len(module.choices_of(10, 3)) == 120
    assert [module.clients_of(module.names(choice)) for choice in ((), (2, 6))] == [(), (2, 6)]
    assert module.inside((1,), [(0, 1)])
    assert not module.inside((1, 2), [(0, 1), (0, 2)])
    assert module.listed((2, 6, 9)) == "2, 6 and 9"
    assert module.listed((2,)) == "2"
