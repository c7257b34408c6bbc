"""Federated principal components against scikit-learn's on pooled rows."""

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError

from fedlib import FederatedPCA
from fedlib.core.messages import Declined, MessageError, TooMuchWork, decode, encode
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import Privacy
from fedlib.sites.models import load, save
from fedlib.tables.components import (
    PCAClient,
    Scatter,
    SumClippedScatter,
    SumScatter,
    principal_components,
)
from fedlib.testing import Recorder, seeded_noise

RNG = np.random.default_rng(0)
MIXED = np.array([[5.0, 1, 0, 2], [0, 2, 1, 0], [0, 0, 1, 0.5], [0, 0, 0, 0.2]])
X = RNG.normal(size=(300, 4)) @ MIXED + [1.0, -20.0, 3.0, 0.0]
PARTS = [X[:7], X[7:8], X[8:8], X[8:200], X[200:]]  # also one row, and none
BOUNDS = [X.min(axis=0) - 1, X.max(axis=0) + 1]
SAME = (
    "components_",
    "explained_variance_",
    "explained_variance_ratio_",
    "singular_values_",
    "mean_",
    "n_components_",
    "n_samples_",
    "noise_variance_",
    "n_features_in_",
)


def agrees(model, expected, rtol=1e-10):
    for name in SAME:
        reference = getattr(expected, name)
        atol = rtol * np.max(np.abs(reference))
        np.testing.assert_allclose(getattr(model, name), reference, rtol=rtol, atol=atol)


@pytest.mark.parametrize("n_components", [None, 1, 3, 4, 0.5, 0.9, 0.9999])
@pytest.mark.parametrize("whiten", [False, True])
def test_all_attributes_are_those_of_scikit_learn(n_components, whiten):
    model = FederatedPCA(n_components, whiten=whiten).fit(PARTS)
    expected = PCA(n_components, whiten=whiten, svd_solver="full").fit(X)
    agrees(model, expected)
    np.testing.assert_allclose(model.transform(X), expected.transform(X), rtol=1e-8, atol=1e-8)
    back = model.inverse_transform(model.transform(X))
    np.testing.assert_allclose(back, expected.inverse_transform(expected.transform(X)), rtol=1e-8)
    agrees(model.to_sklearn(), model, 0)


def test_a_mean_far_from_0_costs_no_digits():
    far = [part + 1e6 for part in PARTS]
    agrees(FederatedPCA().fit(far), PCA(svd_solver="full").fit(X + 1e6), 1e-9)


def test_fewer_rows_than_features():
    few = X[:3]
    model, expected = FederatedPCA().fit([few[:1], few[1:]]), PCA().fit(few)
    assert model.components_.shape == expected.components_.shape == (3, 4)
    np.testing.assert_allclose(
        model.explained_variance_,
        expected.explained_variance_,
        atol=1e-10 * expected.noise_variance_ + 1e-12,
    )


def test_the_distribution_of_rows_does_not_matter():
    one, other = FederatedPCA().fit([X]), FederatedPCA().fit([X[::3], X[1::3], X[2::3]])
    np.testing.assert_allclose(other.components_, one.components_, rtol=0, atol=1e-12)


def test_equal_rows_have_no_variance():
    model = FederatedPCA(0.9).fit([[[1.0, 2.0]] * 3])
    assert model.explained_variance_.tolist() == [0.0]
    assert model.explained_variance_ratio_.tolist() == [0.0]


def test_masked_sums_give_the_same():
    model = FederatedPCA(secure=True, bounds=BOUNDS).fit([X[:100], X[100:250], X[250:]])
    agrees(model, PCA(svd_solver="full").fit(X))


def test_masked_rows_are_clipped_to_the_bounds():
    bounds = [[-2.0, -21.0, 2.0, -1.0], [2.0, -19.0, 4.0, 1.0]]
    model = FederatedPCA(secure=True, bounds=bounds).fit([X[:100], X[100:250], X[250:]])
    agrees(model, PCA(svd_solver="full").fit(np.clip(X, *bounds)))


@pytest.mark.parametrize("secure", [False, True])
def test_noise_that_is_small_changes_little(secure):
    noisy = FederatedPCA(secure=secure, epsilon=500.0, delta=1e-6, bounds=BOUNDS)
    with seeded_noise(0):
        model = noisy.fit([X[:100], X[100:250], X[250:]])
    expected = PCA().fit(X)
    np.testing.assert_allclose(model.mean_, expected.mean_, atol=0.2)
    assert abs(model.components_[0] @ expected.components_[0]) > 0.99


@pytest.mark.parametrize("options", [{}, {"secure": True, "delta": 1e-6}], ids=str)
@pytest.mark.parametrize("epsilon", [0.2, 8.0, 80.0])
def test_intervals_cover_the_variances_of_the_rows(options, epsilon):
    """Of 60 seeds, at least 56 intervals contain each true value; what noise hides is NaN."""
    # Three columns of equal variances, whose eigenvalues the noise spreads, and one that is narrow.
    rows = np.random.default_rng(1).normal(3, 2, (600, 4)) * [1, 1, 1, 0.02]
    bounds = [[-5.0] * 4, [12.0] * 4]
    expected = PCA().fit(np.clip(rows, *bounds))
    true = [expected.explained_variance_, expected.explained_variance_ratio_]
    covered, known = np.zeros((2, 4)), 0
    for seed in range(60):
        noisy = FederatedPCA(epsilon=epsilon, bounds=bounds, **options)
        with seeded_noise(seed):
            model = noisy.fit([rows[:200], rows[200:400], rows[400:]])
        found = np.array([model.explained_variance_, model.explained_variance_ratio_])
        low, high = np.moveaxis(np.array([*model.intervals_.values()]), 2, 0)
        covered += (low <= true) & (true <= high)
        assert ((low < found) & (found < high) | np.isnan(found)).all()
        assert ((low > 0) | np.isnan(found)).all()
        assert (low[1] >= 0).all()
        assert (high[1] <= 1).all()
        known += np.isfinite(found[:, 0]).all()
    assert covered.min() >= 56
    if epsilon != 8:
        assert known == (0 if epsilon < 1 else 60)
    assert {"variance (low)", "fraction (high)"} <= set(model.to_frame())


def test_variances_that_noise_hides_are_nan_with_the_reason(tmp_path):
    noisy = FederatedPCA(epsilon=0.1, bounds=BOUNDS, whiten=True)
    text = "the noise is too large for the rows: .* of 'pca0', .* of 'pca3' are NaN"
    with seeded_noise(0), pytest.warns(UserWarning, match=text):
        model = noisy.fit(PARTS)
    assert np.isnan(model.explained_variance_).all()
    assert np.isnan(model.transform(X)).all()
    assert np.isnan(model.to_sklearn().transform(X)).all()
    save(model, tmp_path / "model.fed")
    again = load(tmp_path / "model.fed")
    assert again.intervals_["variance"].tolist() == model.intervals_["variance"].tolist()
    assert not hasattr(FederatedPCA().fit(PARTS), "intervals_")


def test_one_row_changes_as_much_as_is_declared():
    """A corner of the bounds changes the sums by exactly the sensitivity."""
    request = SumClippedScatter(np.array(BOUNDS), privacy=Privacy(rho=1.0))
    corner = np.array([BOUNDS[1]])
    terms = request.terms(corner)
    assert np.abs(terms).sum() == pytest.approx(request.sensitivity().l1)
    assert np.sqrt(np.square(terms).sum()) == pytest.approx(request.sensitivity().l2)
    assert len(terms[0]) == request.n_values == 15
    beyond = np.array([[1e300, -1e300, 0.0, 7.0]])
    assert np.abs(request.terms(beyond)).max() <= 1


def test_columns_are_named_and_components_are():
    frames = [pd.DataFrame(part, columns=list("abcd")) for part in PARTS]
    model = FederatedPCA(2)
    coordinates = model.fit_transform([frames[0], frames[3][list("dcba")]])
    np.testing.assert_allclose(coordinates[0], model.transform(frames[0]))
    np.testing.assert_allclose(coordinates[1], model.transform(frames[3]))
    assert model.feature_names_in_.tolist() == list("abcd")
    assert model.get_feature_names_out().tolist() == ["pca0", "pca1"]
    assert model.to_frame().columns.tolist() == ["variance", "fraction", *"abcd"]


def test_two_requests_for_data_and_one_with_noise():
    def asked(estimator):
        recorder = Recorder(
            {name: PCAClient(part) for name, part in zip("AB", (X[:9], X[9:]), strict=True)}
        )
        estimator.fit(recorder)
        return [type(one.requests["A"]).__name__ for one in recorder.exchanges]

    assert asked(FederatedPCA()) == ["DescribeFeatures", "SumScatter", "SumScatter"]
    noisy = FederatedPCA(epsilon=1.0, bounds=BOUNDS)
    assert asked(noisy) == ["DescribeFeatures", "SumClippedScatter"]


@pytest.mark.parametrize(
    ("estimator", "parts", "text"),
    [
        (FederatedPCA(3), [[[1.0, 2.0]], [[2.0, 0.0]]], "number of features, 2, got 3"),
        (FederatedPCA(3), [X[:1], X[1:2]], "of features and of rows of all clients, 2, got 3"),
        (FederatedPCA(), [X[:1], X[:0]], "at least 2 rows of all clients, got 1"),
        (FederatedPCA(), [X[:0]], "at least 2 rows of all clients, got 0"),
        (FederatedPCA(), [[[1.0, 2.0]], [[np.nan, 0.0]]], "column '0' must contain finite"),
        (FederatedPCA(bounds=BOUNDS), PARTS, "bounds need secure=True or epsilon"),
        (FederatedPCA(secure=True), PARTS, "secure=True needs bounds"),
        (FederatedPCA(5, secure=True, bounds=BOUNDS), PARTS, "number of features, 4, got 5"),
        (FederatedPCA(0), PARTS, "'n_components' parameter"),
        (FederatedPCA(1.5), PARTS, "'n_components' parameter"),
    ],
)  # fmt: skip
def test_errors_name_the_cause(estimator, parts, text):
    with pytest.raises(ValueError, match=text):
        estimator.fit(parts)


def test_misuse_of_a_model():
    model = FederatedPCA(1)
    for method in ("transform", "inverse_transform"):
        with pytest.raises(NotFittedError):
            getattr(model, method)(X)
    model.fit(PARTS)
    with pytest.raises(ValueError, match="4 features, got 2"):
        model.transform(X[:, :2])
    with pytest.raises(ValueError, match="1 columns, one per component, got the shape"):
        model.inverse_transform(X)
    with pytest.raises(ValueError, match="rows stay at the sites; got Recorder"):
        model.fit_transform(Recorder({"A": PCAClient(X)}))


def lies(**changes):
    """Return what changes the fields of each reply with sums."""

    def tamper(request, reply):
        reply = decode(reply)
        if not isinstance(reply, Scatter):
            return encode(reply)
        fields = {name: getattr(reply, name) for name in Scatter.__struct_fields__}
        fields |= {name: change(fields[name]) for name, change in changes.items()}
        return encode(Scatter(**fields))

    return tamper


@pytest.mark.parametrize(
    "changes",
    [
        {"n_points": lambda n: 0},
        {"sums": lambda sums: sums * 1e9},
        {"products": lambda products: -products},
        {"products": lambda products: products * 1e250},
        {"products": lambda products: np.where(np.arange(10) == 1, 1e9, products)},
    ],
)
def test_an_impossible_reply_costs_a_client_its_place(changes):
    parts = {"A": X[:100], "B": X[100:200], "C": X[200:]}
    clients = {name: PCAClient(part) for name, part in parts.items()}
    model = FederatedPCA().fit(Recorder(clients, tamper={"C": lies(**changes)}), min_clients=2)
    assert list(model.ledger_.lost) == ["C"]
    agrees(model, PCA(svd_solver="full").fit(X[:200]))


def test_another_number_of_rows_is_a_contradiction():
    seen = []

    def forget(request, reply):
        reply = decode(reply)
        if isinstance(reply, Scatter):
            seen.append(reply)
            reply = Scatter(reply.n_points + len(seen), reply.sums, reply.products)
        return encode(reply)

    clients = {name: PCAClient(part) for name, part in zip("ABC", (X, X, X), strict=True)}
    model = FederatedPCA().fit(Recorder(clients, tamper={"C": forget}), min_clients=2)
    assert list(model.ledger_.lost) == ["C"]
    assert len(seen) == 2


def test_tiny_and_huge_values_are_honest():
    for scale in (1e-200, 1e-160, 1e99):
        rows = RNG.normal(size=(50, 3)) * scale
        model = FederatedPCA().fit([rows[:20], rows[20:]])
        assert model.ledger_.lost == {}
    np.testing.assert_allclose(model.explained_variance_, PCA().fit(rows).explained_variance_)


def test_a_site_keeps_the_sums_of_few_rows():
    policy = Policy.from_dict({"min_count": 5})
    request = SumScatter(np.zeros(4))
    for n_rows, expected in ((5, Scatter), (4, Declined)):
        site = GuardedClient(PCAClient(X[:n_rows]), policy, "pca")
        assert isinstance(site.answer(request), expected)


def test_too_many_features_are_refused_before_anything_is_computed():
    wide = np.zeros((2, 2**15))
    with pytest.raises(ValueError, match="too many for principal components: SumScatter asks for"):
        FederatedPCA().fit([wide])
    with pytest.raises(TooMuchWork):
        PCAClient(wide).answer(SumScatter(np.zeros(2**15)))


def test_a_client_refuses_other_features():
    with pytest.raises(ValueError, match="centre must have the 4 features of the points, got 2"):
        PCAClient(X).answer(SumScatter(np.zeros(2)))
    with pytest.raises(ValueError, match="bounds must have the 4 features"):
        PCAClient(X[:0]).answer(SumClippedScatter(np.array([[0.0], [1.0]])))
    request = SumScatter(np.zeros(4))
    with pytest.raises(MessageError, match="Scatter must have"):
        request.accept(PCAClient(X[:, :2]).answer(SumScatter(np.zeros(2))))
    assert decode(encode(request)) == request


def test_the_sign_of_a_component_is_that_of_its_largest_entry():
    covariance = np.cov(X.T)
    components = principal_components(300, np.zeros(4), covariance, None, None).components
    largest = np.abs(components).argmax(axis=1)
    assert (components[np.arange(4), largest] > 0).all()
