"""Test what the pages on clustering compute besides their experiments."""

import numpy as np
import pytest
from scipy.sparse.csgraph import shortest_path
from sklearn.cluster import DBSCAN

from fedlib import GaussianMixtureSelection, HorizontalDBSCAN, KMeansSelection
from fedlib.clustering.mixtures.em import fit_mixture
from fedlib.evaluation.metrics import clustering_scores

rng = np.random.default_rng(0)
PARTS = [rng.normal(4 * (i % 2), 0.4, (30, 2)) for i in range(4)]
TRUTH = [np.full(30, i % 2) for i in range(4)]
X, Y = np.concatenate(PARTS), np.concatenate(TRUTH)


@pytest.fixture(scope="module")
def runs(modules):
    study = modules("study.clustering.passive_runs")
    return study.PassiveRuns([*PARTS[:3], np.repeat(PARTS[3][:15], 2, axis=0)], TRUTH, 0.5, 4)


@pytest.mark.parametrize("passive", [(), (1,), (0, 3)])
@pytest.mark.parametrize("border", ["nearest", "absorb"])
def test_runs_without_messages_have_the_labels_of_the_protocol(runs, passive, border):
    parts = np.split(runs.points, 4)
    model = HorizontalDBSCAN(0.5, 4, border=border, random_state=2).fit(parts, passive=passive)
    labels = runs.place(passive, runs.label(passive, border, 2))
    assert labels.tolist() == np.concatenate(model.labels_).tolist()
    scores = list(runs.scores(labels, passive))
    assert len(scores) == (3 if passive else 2)
    assert scores[0] == clustering_scores(runs.truth, labels)


def test_the_second_edition_labels_only_the_first_of_equal_rows(runs):
    cell_labels = runs.label((), "absorb", 0)
    labels = runs.place_as("M2", (), cell_labels)
    assert (labels[runs.repeated] == -1).all()
    assert runs.repeated.sum() == 15
    assert (runs.place_as("M1", (), cell_labels)[runs.repeated] >= 0).any()


def test_each_order_has_a_column(runs):
    columns, which = runs.columns("M1", (1,), (0, 1, 2))
    assert columns.shape[1] == 15
    for seed in range(3):
        labels = runs.place((1,), runs.label((1,), "absorb", seed))
        expected = [value for scored in runs.scores(labels, (1,)) for value in scored.values()]
        assert columns[which[seed]].tolist() == expected


def test_a_chain_ends_at_both_points(modules):
    module = modules("study.clustering.border_points")
    steps = np.full((4, 4), np.inf)
    steps[[0, 1, 2], [1, 2, 3]] = 1
    _, previous = shortest_path(steps, unweighted=True, return_predecessors=True)
    assert module.chain(previous, 0, 3) == [0, 1, 2, 3]


def test_a_contested_point_is_near_two_clusters(modules):
    module = modules("study.clustering.border_points")
    line = np.array([0, 0.1, 0.2, 0.9, 1.6, 1.7, 1.8])[:, None]
    contested, is_core, near = module.contested(line, 0.75, 4)
    assert contested.tolist() == [3]
    assert is_core.tolist() == [False, False, True, False, True, False, False]
    assert near[3].tolist() == [2, 3, 4]
    swapped = np.array([1, 1, 1, 1, 0, 0, 0])
    labels = DBSCAN(eps=0.75, min_samples=4).fit_predict(line)
    differ = module.differ(swapped, labels, is_core)
    assert differ.tolist() == (labels != [0, 0, 0, 0, 1, 1, 1]).tolist()


def test_weighted_distances_are_those_of_repeated_points(modules):
    module = modules("study.clustering.k_distances")
    weights = rng.integers(1, 4, 30)
    fractions, distances = module.weighted_curve(PARTS[0], weights, 5)
    repeated = np.repeat(PARTS[0], weights, axis=0)
    _, expected = module.weighted_curve(repeated, np.ones(len(repeated), int), 5)
    counts = np.diff(fractions, prepend=0) * weights.sum()
    np.testing.assert_allclose(np.repeat(distances, counts.round().astype(int)), expected)
    curve, knee = module.pooled_curve(repeated, 4)  # without the point itself
    np.testing.assert_allclose(curve[::-1], expected)
    assert 0 <= knee < len(curve)


def test_the_score_of_a_grid_is_the_median_over_orders(modules):
    module = modules("study.clustering.k_distances")
    scores = [module.grid_ari(X, Y, 0.5, 4, [seed]) for seed in range(9)]
    assert len(set(scores)) > 1
    assert module.grid_ari(X, Y, 0.5, 4, range(9)) == np.median(scores)


def test_scikit_learn_computes_the_same_criteria(modules):
    module = modules("study.clustering.k_distances")
    kmeans = KMeansSelection(2, random_state=0).fit(PARTS)
    mixture = GaussianMixtureSelection(2, random_state=0).fit(PARTS)
    models = kmeans.model_.models[1], mixture.model_.models[1]
    inertia, bic, aic = module.criteria_of_sklearn(X, *models)
    assert inertia == pytest.approx(kmeans.model_.inertias[1])
    assert [bic, aic] == pytest.approx([mixture.model_.bic[1], mixture.model_.aic[1]])


def test_points_taken_are_listed_by_name(modules):
    module = modules("study.clustering.dbscan_steps")
    near = [[0, 1], [0, 1, 2], [1, 2], [3]]
    _, record = module.run_steps(near, 3, range(4))
    assert module.points_taken(record, "abcd") == [
        {"taken": "a", "neighbourhood": "a b", "assigned to": "noise"}
        | {"joined": "", "joined from the noise": ""},
        {"taken": "b", "neighbourhood": "a b c", "assigned to": "cluster 0"}
        | {"joined": "c", "joined from the noise": "a"},
        {"taken": "d", "neighbourhood": "d", "assigned to": "noise"}
        | {"joined": "", "joined from the noise": ""},
    ]


def test_all_indexes_find_the_same_neighbours(modules):
    module = modules("study.clustering.spatial_indexes")
    rows = list(module.count_work(X, np.arange(10), 0.5, 8))
    assert [row["index"] for row in rows] == ["quadtree", "k-d tree", "grid"]
    assert all(row["same"] and 0 < row["distances"] <= len(X) for row in rows)
    assert len({row["neighbours"] for row in rows}) == 1


def test_regions_are_turned_from_dealing_to_dealing(modules):
    module = modules("study.clustering.representatives_clients")
    first, second = (module.turned_regions(X, 4, dealing, 2) for dealing in (0, 1))
    for rows in (first, second):
        assert sorted(np.concatenate(rows).tolist()) == list(range(len(X)))
    assert list(map(set, first)) != list(map(set, second))


def test_a_shape_is_dealt_to_the_first_clients_only(modules):
    module = modules("study.clustering.representatives_clients")
    rows = module.share_shape(X, Y == 1, 3, 2)
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(X)))
    assert [int(Y[part].sum()) for part in rows] == [30, 30, 0]


def test_fitting_radii_find_every_shape(modules):
    module = modules("study.clustering.representatives_clients")
    found = module.fitting_radii(3 * X, Y, 5)
    assert max(ari for _, ari in found) == 1
    assert all(0 < eps <= 8 for eps, _ in found)
    assert module.fitting_radii(X, np.zeros(len(X), int), 5)[0][0] > found[0][0]


def test_a_mixture_describes_drawn_points(modules):
    module = modules("study.clustering.mixture_study")
    mixture = fit_mixture(PARTS[0], 1, random_state=0)
    drawn = module.draw(mixture, 500, 0)
    np.testing.assert_allclose(drawn.mean(axis=0), PARTS[0].mean(axis=0), atol=0.1)
    near = module.to_nearest(PARTS[0], PARTS[0], k=2)
    assert (module.to_nearest(PARTS[0], PARTS[0]) == 0).all()
    assert (near > 0).all()


def test_silhouettes_of_blobs_fall_with_their_spread(modules):
    silhouette = modules("study.clustering.mixture_study").silhouette_of_blobs
    assert silhouette(8, 2, 0.2, 200) > silhouette(8, 2, 1.0, 200) > 0


def test_facts_and_pictures_of_a_set(modules):
    facts, data = modules("study.shared.set_facts"), modules("fedlib").datasets.load("moons")
    described = facts.describe(data)
    assert (described["rows"], described["features"], described["classes"]) == (1000, 2, 2)
    assert described["smallest class"] + described["largest class"] == 1000
    facts.pictures([data, data], 50, 0, per_row=2)
    first, second = modules("matplotlib.pyplot").gcf().axes
    assert first.get_title() == "moons"
    assert sum(len(points.get_offsets()) for points in second.collections) == 50


def test_patients_are_reproducible_and_have_gaps(modules):
    hospitals = modules("study.shared.hospitals")
    made = [hospitals.patients(np.random.default_rng(1), "north", 300, (0, 0, 1)) for _ in "12"]
    (frame, kind), (again, _) = made
    assert frame.equals(again)
    assert set(kind) == {2}
    assert frame["patient"].iloc[-1] == "north-299"
    assert 0 < frame["bmi"].isna().mean() < 0.2
    assert frame["age"].mean() == pytest.approx(hospitals.KINDS["age"][2], abs=2)


def test_a_set_without_a_badge_is_the_same(modules, capsys):
    data = modules("study").fetch("moons")
    assert capsys.readouterr().out == ""
    assert data.name == "moons"
