"""One error lists everything that a run with masks or noise still needs, before any message."""

import numpy as np
import pytest

from fedlib import (
    ApproximateDBSCAN,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedPipeline,
    FederatedSummary,
    FederatedXGBClassifier,
    FederatedXGBRegressor,
    HorizontalDBSCAN,
    Schema,
)

FREE = Schema(
    {
        "schema": {
            "fields": [
                {"name": "age", "type": "integer", "constraints": {"minimum": 0}},
                {"name": "town", "type": "string"},
                {
                    "name": "bmi",
                    "type": "number",
                    "constraints": {"minimum": 1, "maximum": 9},
                    "fedlib": {"unconfirmed": ["constraints.minimum"]},
                },
                {
                    "name": "visit",
                    "type": "number",
                    "constraints": {"minimum": 5, "maximum": 5},
                },
                {"name": "ill", "type": "string", "fedlib": {"role": "target"}},
            ]
        }
    }
)
IN_SCHEMA = [
    "a minimum and a maximum of 'age'",
    "an enum of 'town'",
    "the confirmation of constraints.minimum of 'bmi'",
    "a maximum of 'visit' above its minimum, or its role 'ignore' (got 5 for both)",
    "an enum of 'ill'",
]
NOISE = {"epsilon": 1.0, "secure": True}
DELTA = "delta > 0"
GIVEN = np.zeros((2, 1))


@pytest.mark.parametrize(
    ("estimator", "wanted"),
    [
        (HorizontalDBSCAN(1.0, 2, **NOISE), [DELTA, "bounds, the smallest"]),
        (ApproximateDBSCAN(1.0, 2, **NOISE), [DELTA, "bounds, the smallest"]),
        (HorizontalDBSCAN(1.0, 2, secure=True, schema=FREE), [*IN_SCHEMA, "text in 'town'"]),
        (
            FederatedKMeans(2, method="one_shot", **NOISE),
            [DELTA, "method='lloyd'", "bounds, the smallest"],
        ),
        (
            FederatedKMeans(2, secure=True, schema=FREE),
            ["an array as init", *IN_SCHEMA, "text in 'town'"],
        ),
        (FederatedKMeans(2, secure=True), ["an array as init", "bounds, the smallest"]),
        (
            FederatedGaussianMixture(2, method="average", **NOISE),
            [DELTA, "method='em'", "bounds, the smallest"],
        ),
        (
            FederatedGaussianMixture(2, method="em", means_init=GIVEN, secure=True, schema=FREE),
            ["precisions_init", "got method='em', means_init)", *IN_SCHEMA],
        ),
        (
            FederatedGaussianMixture(2, method="em", secure=True),
            ["precisions_init", "bounds, the smallest"],
        ),
        (
            FederatedSummary(categorical=["age"], **NOISE),
            [DELTA, "quantiles=None", "categorical=None", "bounds, the smallest"],
        ),
        (FederatedSummary(secure=True, schema=FREE), ["quantiles=None", *IN_SCHEMA]),
        (
            FederatedSummary(categorical=["age"], secure=True),
            ["quantiles=None", "categorical=None", "bounds, the smallest"],
        ),
        (
            FederatedXGBClassifier(2, validation_fraction=0.5, method="union", secure=True),
            ["method='histogram'", "validation_fraction=0", "classes", "bounds, the smallest"],
        ),
        (
            FederatedXGBClassifier(2, method="histogram", tol=0.1, schema=FREE, **NOISE),
            [DELTA, "tol=None", *IN_SCHEMA, "an enum of 'ill' (the classes)"],
        ),
        (
            FederatedXGBRegressor(2, objective="count:poisson", method="union", **NOISE),
            [DELTA, "method='histogram'", "objective=", "base_score", "bounds, the smallest"],
        ),
        (FederatedXGBRegressor(2, secure=True), ["max_target", "bounds, the smallest"]),
        (
            FederatedPipeline(FederatedKMeans(2, method="one_shot", **NOISE), schema=FREE),
            [DELTA, "method='lloyd'", "encode='one_hot'", *IN_SCHEMA, "a fill for the gaps of"],
        ),
        (
            FederatedPipeline(FederatedXGBClassifier(2, method="union", secure=True), schema=FREE),
            ["method='histogram'", "encode='one_hot'", *IN_SCHEMA, "(the classes)"],
        ),
        (
            FederatedPipeline(FederatedKMeans(2, secure=True)),
            ["schema, because the pipeline", "an array as init"],
        ),
    ],
)
def test_one_error_lists_everything(estimator, wanted):
    with pytest.raises(ValueError, match="needs ") as error:
        estimator.protocol()
    text = str(error.value)
    assert [what for what in wanted if what not in text] == []
    assert text.count("a minimum and a maximum of 'age'") <= 1
