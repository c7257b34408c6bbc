"""Options made from signatures, parameter constraints and docstrings."""

from numbers import Integral, Real

import click
import numpy as np
import pytest
from cli_helpers import invoke, refuse

from fedlib import FederatedXGBClassifier
from fedlib.cli.common import options_of
from fedlib.cli.options import (
    Parameter,
    client_options,
    parameter_options,
    pipeline_options,
)
from fedlib.cli.serve import ProtocolCommands, ServeOptions, _wrap
from fedlib.core.parameters import Interval, StrOptions
from fedlib.core.registry import protocols


def convert(text, *constraints):
    """Return the value of an option whose parameter has these constraints."""
    return Parameter(constraints).convert(text, None, None)


def test_values_are_converted_as_the_constraints_allow():
    whole = Interval(Integral, 0, None, closed="left")
    real = Interval(Real, 0, None, closed="left")
    assert convert("3", whole) == 3
    assert convert("3", real) == 3.0
    assert convert("none", whole, None) is None
    assert convert("7", "random_state") == 7
    assert convert("mean", StrOptions({"mean"}), whole) == "mean"
    assert convert(None, whole, None) is None
    for text in ("x", "1.5", "none"):
        with pytest.raises(click.BadParameter, match=f"'{text}' is not one of: INTEGER"):
            convert(text, whole)


def test_arrays_are_read_from_files(tmp_path):
    np.save(tmp_path / "init.npy", np.eye(2))
    (tmp_path / "init.csv").write_text("1,0\n0,1\n")
    for name in ("init.npy", "init.csv"):
        array = convert(str(tmp_path / name), StrOptions({"k-means++"}), "array-like")
        assert array.tolist() == [[1, 0], [0, 1]]
    with pytest.raises(click.BadParameter, match="is not an array in a .npy or .csv file"):
        convert("no.npy", "array-like")


def test_names_and_limits_are_lists_in_one_text():
    assert convert("age, sex", list, tuple, None) == ["age", "sex"]
    assert convert("age=0:120,a=b=-1:1e3", dict, None) == {"age": (0, 120), "a=b": (-1, 1000)}
    assert convert("none", dict, None) is None
    assert convert('{"age": 1}', dict, "array-like", None) == {"age": 1}
    assert convert('[["age", 1], ["sex"]]', list, None) == [["age", 1], ["sex"]]
    with pytest.raises(click.BadParameter, match="is not valid JSON"):
        convert("[[0, 1]", list, None)
    assert convert("no, yes", "array-like", list, None) == ["no", "yes"]
    assert convert("0,1", "array-like", list, None) == [0, 1]
    assert convert("0.5,1", "array-like", list, None) == [0.5, 1]
    for text in ("age", "age=0", "age=0:x", "=0:1"):
        with pytest.raises(click.BadParameter, match="is not of the form NAME=LOW:HIGH"):
            convert(text, dict, None)


def test_quantiles_are_numbers_in_one_text_or_none():
    options = {option.name: option for option in parameter_options(protocols()["summary"])}
    kind = options["quantiles"].type
    assert kind.name == "none|VALUE,…"
    for text, expected in [("0.25, 0.5,1", [0.25, 0.5, 1.0]), ("0", [0]), ("none", None)]:
        value = kind.convert(text, None, None)
        assert value == expected
        protocols()["summary"](quantiles=value).protocol()
    # The request for sums that are masked needs no file with an empty array.
    limits = {"bounds": [[0.0], [1.0]], "secure": True}
    protocols()["summary"](quantiles=kind.convert("None", None, None), **limits).protocol()
    with pytest.raises(ValueError, match="secure=True needs quantiles=None .got"):
        protocols()["summary"](**limits).protocol()
    with pytest.raises(ValueError, match="quantiles must be numbers in .* got .'half'."):
        protocols()["summary"](quantiles=kind.convert("half", None, None)).protocol()


def test_only_protocols_that_a_pipeline_can_wrap_have_its_options():
    names = {name for name, kind in protocols().items() if pipeline_options(kind)}
    assert set(protocols()) - names == {"summary", "vertical-dbscan"}
    text = invoke("serve", "kmeans", "--help")
    for option in pipeline_options(protocols()["kmeans"]):
        assert option.help
        assert option.opts[0] in text


def test_every_option_of_a_command_has_a_name_of_its_own():
    """Pipelines and boosting both have a minimum count of a category: one option sets both."""
    for name in protocols():
        command = ProtocolCommands().get_command(None, name)
        names = [option.name for option in command.params]
        assert len(names) == len(set(names)), name
    pipeline = _wrap(FederatedXGBClassifier(min_category_count=3), {"scale": "standard"})
    assert pipeline.min_category_count == pipeline.estimator.min_category_count == 3


@pytest.mark.parametrize("name", protocols())
def test_every_parameter_has_an_option_with_a_text(name):
    estimator = protocols()[name]
    options = {option.name: option for option in parameter_options(estimator)}
    without = {"callback", "warm_start"}  # a function; no process starts with a model
    assert set(options) == set(estimator._get_param_names()) - without
    for option in options.values():
        assert option.help, option.name
    common = {flag for option in options_of(ServeOptions) for flag in option.opts}
    assert not common & {flag for option in options.values() for flag in option.opts}
    text = invoke("serve", name, "--help")
    assert all(option.opts[0] in text for option in options.values())


def test_arguments_of_clients_are_options_of_join():
    options = {option.name: option for option in client_options()}
    assert {"client_key", "client_n_jobs", "client_random_state"} <= set(options)
    assert "client_ids" not in options
    assert options["client_key"].help.startswith("A file that contains: ")
    assert options["client_key"].help.endswith("; for vertical-dbscan.")
    text = invoke("join", "--help")
    assert all(option.opts[0] in text for option in options.values())


@pytest.mark.parametrize("name", ["xgboost", "xgb-regressor", "gaussian-mixture"])
def test_no_run_of_the_command_line_continues_a_model(name):
    """Each process starts without one."""
    assert "warm_start" in protocols()[name]._get_param_names()
    refused = refuse("serve", name, "--warm-start", code=2)
    assert "No such option" in refused
    assert "--warm-start" in refused
