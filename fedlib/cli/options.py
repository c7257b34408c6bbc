"""Options made from the signatures, constraints and docstrings of estimators and clients."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import click

from fedlib.cli.common import CLIENT, EXISTING, click_type, flag_of, make_option, parameter_docs
from fedlib.core.aggregation import AgreedColumns
from fedlib.core.estimator import Federated
from fedlib.core.parameters import Interval, StrOptions
from fedlib.core.registry import protocols
from fedlib.sites.leave_one_out.estimator import LeaveOneSiteOut, check_validated
from fedlib.sites.site import argument_types
from fedlib.tables.alignment import check_alignable
from fedlib.tables.files import read_array
from fedlib.tables.pipeline.estimator import FederatedPipeline, check_wrapped
from fedlib.tables.schema import Schema


class Parameter(click.ParamType):
    """The type of an option for a parameter with scikit-learn's constraints.

    It converts text to a type that the constraints allow. The estimator checks the range.

    Parameters
    ----------
    constraints : sequence
        The parameter's entry in the estimator's ``_parameter_constraints``.
    """

    def __init__(self, constraints: Sequence[Any]):
        self.constraints = list(constraints)
        self.options = sorted(
            option
            for constraint in constraints
            if isinstance(constraint, StrOptions)
            for option in constraint.options
        )
        self.numbers = [c.type for c in constraints if isinstance(c, Interval)]
        self.whole = Integral in self.numbers or "random_state" in constraints
        self.real = any(number not in (None, Integral) for number in self.numbers)
        self.array = "array-like" in constraints
        self.names = list in constraints
        self.limits = dict in constraints
        self.none = None in constraints
        self.schema = any(isinstance(c, type) and issubclass(c, AgreedColumns) for c in constraints)
        kinds = [*self.options, *(["none"] if self.none else [])]
        kinds += ["FLOAT"] if self.real else ["INTEGER"] if self.whole else []
        kinds += ["FILE"] if self.array and not self.names else []
        kinds += ["VALUE,…" if self.array else "NAME,…"] if self.names else []
        kinds += ["NAME=LOW:HIGH,…"] if self.limits else []
        self.name = "FILE" if self.schema else "|".join(kinds) or "text"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{self.name}]" if "|" in self.name else self.name.upper()

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        if not isinstance(value, str) or value in self.options:
            return value
        if self.none and value.lower() == "none":
            return None
        if self.schema:
            try:
                return Schema.read(value)
            except ValueError as error:
                self.fail(str(error), param, ctx)
        if (self.names or self.limits) and value.lstrip().startswith(("[", "{")):
            try:
                return json.loads(value)
            except ValueError as error:
                self.fail(f"{value!r} is not valid JSON: {error}", param, ctx)
        kinds: list[Callable[[str], Any]] = [int] if self.whole else []
        for kind in [*kinds, float] if self.real else kinds:
            try:
                return kind(value)
            except ValueError:
                pass
        if self.names:
            names = [name.strip() for name in value.split(",")]
            return _numbers(names) if self.array else names
        if self.limits and not (self.array and Path(value).exists()):
            return self._pairs(value, param, ctx)
        if self.array:
            try:
                return read_array(Path(value))
            except ValueError as error:
                self.fail(f"{value} is not an array in a .npy or .csv file: {error}", param, ctx)
        self.fail(f"{value!r} is not one of: {self.name.replace('|', ', ')}", param, ctx)

    def _pairs(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, tuple[float, float]]:
        """Return the limits in text such as ``age=0:120,weight=0:300``."""
        limits = {}
        for item in value.split(","):
            match = re.fullmatch(r"\s*(.+)=([^:=]+):([^:=]+)", item)
            try:
                name, low, high = match.groups() if match else ("", "", "")
                limits[name] = float(low), float(high)
            except ValueError:
                form = "NAME=LOW:HIGH" + (", and not a file" if self.array else "")
                self.fail(f"{item!r} is not of the form {form}", param, ctx)
        return limits


def _numbers(texts: Sequence[str]) -> list[Any]:
    """Return texts as numbers if all are numbers, and unchanged otherwise."""
    for kind in (int, float):
        try:
            return [kind(text) for text in texts]
        except ValueError:
            pass
    return list(texts)


def parameter_options(declared: type[Any]) -> list[click.Option]:
    """Return one option per parameter of a class, such as an estimator (`core.parameters`).

    A function has none, because no text is one, nor has ``warm_start``, because each process starts
    without a model.
    """
    docs, constraints = parameter_docs(declared), declared._parameter_constraints
    return [
        make_option(
            name, parameter.default, docs.get(name, ""), _parameter_type(constraints.get(name, []))
        )
        for name, parameter in inspect.signature(declared).parameters.items()
        if constraints.get(name) != [callable, None] and name != "warm_start"
    ]


def _parameter_type(constraints: Sequence[Any]) -> click.ParamType:
    kind = Parameter(constraints)
    boolean = "boolean" in constraints and not (kind.options or kind.numbers)
    return click.BOOL if boolean else kind


def pipeline_options(estimator: type[Federated]) -> list[click.Option]:
    """Return one option per parameter of a pipeline; none if it cannot wrap the estimator.

    A parameter that the estimator has too has only the estimator's option.
    """
    try:
        check_wrapped(estimator)
    except ValueError:
        return []
    other = {"estimator", *estimator._get_param_names()}
    return [option for option in parameter_options(FederatedPipeline) if option.name not in other]


def align_options(estimator: type[Federated]) -> list[click.Option]:
    """Return the option that aligns rows; none if the protocol cannot be aligned."""
    try:
        check_alignable(estimator)
    except ValueError:
        return []
    text = "First find the rows that all sites have, whatever their order, by keyed hashes."
    return [click.Option(["--align"], is_flag=True, help=text)]


def validation_options(
    estimator: type[Federated], others: Sequence[click.Option]
) -> list[click.Option]:
    """Return the options of validation over sites; none if the protocol cannot be validated.

    A parameter that one of the other options sets has only that.
    """
    try:
        check_validated(estimator)
    except ValueError:
        return []
    taken = {"estimator", *(option.name for option in others)}
    text = "Validate: leave each site out of a fit, and score its rows by the model of the others."
    flag = click.Option(["--leave-one-site-out"], is_flag=True, help=text)
    further = [one for one in parameter_options(LeaveOneSiteOut) if one.name not in taken]
    return [flag, *further]


def client_options() -> list[click.Option]:
    """Return one option per argument that the clients of any protocol take besides their data.

    Identifiers are excluded because they are a column of the data file.
    """
    users: dict[str, list[str]] = {}
    described: dict[str, tuple[click.ParamType, str]] = {}
    for protocol, estimator in protocols().items():
        docs = parameter_docs(estimator.client_class)
        docs |= parameter_docs(estimator.client_class.__init__)
        for name, types in argument_types(estimator.client_class).items():
            if name != "ids":
                users.setdefault(name, []).append(protocol)
                described.setdefault(name, (_client_type(name, types), docs.get(name, name)))
    options = []
    for name, (kind, text) in described.items():
        text = f"A file that contains: {text}" if kind is EXISTING else text
        text = f"{text.rstrip('.')}; for {', '.join(users[name])}."
        options.append(make_option(CLIENT + name, None, text, kind, flag=flag_of(name)))
    return options


def _client_type(name: str, types: set[Any]) -> click.ParamType:
    return click.INT if name == "random_state" and Any in types else click_type(types)
