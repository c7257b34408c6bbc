"""The rules of a site, and how they are read from a file."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedlib.core.client import Client
from fedlib.core.file_errors import reading
from fedlib.core.messages import MAX_WORK, Message, arrays
from fedlib.core.registry import find_estimator, protocols, unwrapped, wrappers
from fedlib.core.site_memory import TableMemory
from fedlib.core.wording import read_edited
from fedlib.protection.privacy import Budget

# The type of each general rule, and its description for errors.
GROUPS = ("together", "singly")
MAX_EPSILON = 1.0  # of one reply with noise at a site with a minimum count: a row is likely hidden
KINDS: dict[str, tuple[type, str]] = {
    "min_clients": (int, "an integer from 1 on"),
    "min_count": (int, "an integer from 1 on"),
    "groups": (str, "'together' or 'singly'"),
    "max_rounds": (int, "an integer from 1 on"),
    "max_bytes": (int, "an integer from 1 on"),
    "max_work": (int, "an integer from 1 on"),
    "max_declines": (int, "an integer from 1 on"),
    "max_epsilon": (float, "a number above 0"),
    "extremes": (bool, "true or false"),
    "same_members": (bool, "true or false"),
}


@dataclass(frozen=True)
class Allowed:
    """The values of a parameter that a site allows.

    Attributes
    ----------
    min, max : number, optional
        The smallest and the largest value.
    values : tuple, optional
        The only values.

    Examples
    --------
    >>> Allowed(min=5).permits(4), Allowed(values=("core",)).permits("core")
    (False, True)
    """

    min: float | None = None
    max: float | None = None
    values: tuple[Any, ...] | None = None

    def permits(self, value: object) -> bool:
        """Return whether a value is allowed. None, which often means no limit, is not a number."""
        if self.values is not None:
            return value in self.values
        if not isinstance(value, int | float):
            return False
        above = self.min is None or value >= self.min
        return above and (self.max is None or value <= self.max)

    def __str__(self) -> str:
        """Return the allowed values as text."""
        if self.values is not None:
            return f"in {list(self.values)}"
        limits = [f"at least {self.min}"] if self.min is not None else []
        limits += [f"at most {self.max}"] if self.max is not None else []
        return " and ".join(limits)


@dataclass(frozen=True)
class Rules:
    """What may leave a site.

    Attributes
    ----------
    min_clients : int, default=1
        The least count of clients that the server must have admitted to the run.
    min_count : int, default=1
        The least count of rows in each group of rows that the server can separate. Small cells
        and clusters are left out where the protocol allows it; otherwise the request is declined.
        So is a request whose reply contains more than sums over groups, and one of which a row adds
        something else than in an earlier reply, by another parameter or another delivered result.
        If rows have weights, a group counts as the sum of its weights divided by the largest one,
        so that no row has more than ``1 / min_count`` of its weight. The rule does not apply to
        replies that describe no rows, nor to those with noise, which then need a budget.
    groups : {"together", "singly"}, default="together"
        Which groups `min_count` is about. ``"together"``: the classes of the common refinement of
        all partitions of the rows that the site has answered in the run, so that no difference of
        two sums belongs to fewer rows. ``"singly"``: each group of a reply by itself. Then two
        large groups may differ by one row, whose values follow from the difference of their sums.
        Boosting needs it: its server chooses by the trees which gradients are summed.
    max_rounds : int, optional
        The largest count of requests for data that are answered in one run.
    max_bytes : int, optional
        The largest size of all replies of one run.
    max_work : int, default=10**8
        The most operations per row and feature for one reply, by the request's own formula
        (`fedlib.core.messages.Message.work`), with its noise. It holds for delivered results, too.
    max_declines : int, optional
        The most requests that are declined because of the rows, in all runs about the table. After
        them, every request for data without noise is. Each such answer is a bit about the rows.
    max_epsilon : float, optional
        The largest privacy loss of one reply with noise: its epsilon, or for ``rho`` the number
        ``sqrt(2 * rho)``. By default 1 with a minimum count, and otherwise no limit.
    extremes : bool, default=True
        Whether the smallest and the largest value of a column may leave.
    same_members : bool, default=False
        Whether all secure sums of a run must be over the same clients. The run then ends when a
        client is lost.
    parameters : mapping of str to Allowed
        Allowed values of parameters, by the name of the field in the requests.
    """

    min_clients: int = 1
    min_count: int = 1
    groups: str = GROUPS[0]
    max_rounds: int | None = None
    max_bytes: int | None = None
    max_work: int = MAX_WORK
    max_declines: int | None = None
    max_epsilon: float | None = None
    extremes: bool = True
    same_members: bool = False
    parameters: Mapping[str, Allowed] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def most_epsilon(self) -> float:
        """The largest privacy loss of one reply."""
        if self.max_epsilon is None:
            return MAX_EPSILON if self.min_count > 1 else math.inf
        return self.max_epsilon


@dataclass(frozen=True)
class Policy:
    """The rules of a site for each protocol.

    Attributes
    ----------
    general : Rules
        The rules for protocols that have none of their own.
    protocols : mapping of str to Rules, optional
        The allowed protocols with their rules; by default all are allowed.
    budget : Budget, optional
        The limit on the privacy loss of all runs about a table. With it, a request for data is
        answered only if the reply has noise (`fedlib.protection.privacy`), or describes no rows.
    from_file : bool, default=False
        Whether a site has read the policy from a file. What it limits is then kept in the memory of
        each table; otherwise, in a simulation, it ends with this object or its budget.

    Examples
    --------
    >>> policy = Policy.from_dict({"min_count": 5, "protocols": {"kmeans": {"min_count": 9}}})
    >>> policy.rules("kmeans").min_count, policy.rules("dbdc")
    (9, None)
    """

    general: Rules = field(default_factory=Rules)
    protocols: Mapping[str, Rules] | None = None
    budget: Budget | None = None
    from_file: bool = False
    _memory: TableMemory = field(default_factory=TableMemory, repr=False, compare=False)

    def memory_of(self, client: Client) -> TableMemory:
        """Return what a site with this policy remembers about the rows of a client.

        If the policy is a file, the client remembers it, too.
        """
        if client.memory is None and self.from_file:
            client.memory = TableMemory.of_rows(client.X)
        if client.memory is not None:
            return client.memory
        return self._memory if self.budget is None else self.budget.memory

    def rules(self, protocol: str) -> Rules | None:
        """Return the rules for a protocol; None if it is not allowed."""
        return self.general if self.protocols is None else self.protocols.get(protocol)

    @classmethod
    def read(cls, path: str | Path) -> Policy:
        """Return the policy in a TOML file.

        Raises
        ------
        ValueError
            When the file cannot be read or is not a valid policy; see `from_dict`.

        Notes
        -----
        What the policy limits is kept in the memory of each table, in the state folder of the site
        (`fedlib.core.site_memory`). Two policies over one table share it.
        """
        path = Path(path)
        with reading(path, "it must be a policy in TOML"):
            content = tomllib.loads(read_edited(path).decode())
            if not content:  # such as a file that was cut off
                raise ValueError("there is no rule; min_count = 1 alone allows everything")
            policy = cls.from_dict(content)
        if policy.budget is not None:  # charges that are of no table
            policy.budget.memory = TableMemory(path.with_suffix(".spent.jsonl"))
        return replace(policy, from_file=True)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Policy:
        """Return the policy in the tables of a TOML file.

        Parameters
        ----------
        content : mapping
            The general rules by name, a table ``budget`` with ``epsilon`` and ``delta``,
            and a table ``protocols`` with one table per allowed protocol. The latter contain rules
            that replace the general ones, and a table ``parameters``.

        Raises
        ------
        ValueError
            When a rule, a protocol or a parameter is unknown, or a value is invalid. The text
            contains the place, the value and what is accepted.

        Examples
        --------
        >>> Policy.from_dict({"min_cuont": 5})
        Traceback (most recent call last):
        ...
        ValueError: min_cuont is not a rule; the rules are min_clients, min_count, groups, \
max_rounds, max_bytes, max_work, max_declines, max_epsilon, extremes, same_members, budget, \
protocols
        """
        rest = dict(content)
        tables, budget = rest.pop("protocols", None), _read_budget(rest.pop("budget", None))
        _check_names("", rest, [*KINDS, "budget", "protocols"])
        general = {name: _check_rule("", name, value) for name, value in rest.items()}
        if tables is None:
            return cls(Rules(**general), budget=budget)
        _check_table("protocols", tables, "one table per protocol")
        return cls(
            Rules(**general),
            {name: _read_rules(name, table, general) for name, table in tables.items()},
            budget,
        )


def _check_names(place: str, given: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in given:
        if name not in known:
            raise ValueError(f"{place}{name} is not a rule; the rules are {', '.join(known)}")


def _check_table(place: str, value: object, accepted: str) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{place} must be a table, {accepted}; got {value!r}")


def _check_rule(place: str, name: str, value: Any) -> Any:
    """Return the value of a rule."""
    kind, accepted = KINDS[name]
    if kind is float and type(value) is int:
        value = float(value)
    wrong = value < 1 if type(value) is int else kind is str and value not in GROUPS
    wrong |= kind is float and not (type(value) is float and 0 < value < math.inf)
    if type(value) is not kind or wrong:
        raise ValueError(f"{place}{name} must be {accepted}; got {value!r}")
    return value


def _read_budget(table: Any) -> Budget | None:
    """Return the budget in a table; None if there is no table."""
    if table is None:
        return None
    given = dict(table) if isinstance(table, Mapping) else {}
    if "epsilon" in given and given.keys() <= {"epsilon", "delta"}:
        try:
            return Budget(**given)
        except ValueError as error:
            raise ValueError(f"budget.{error}") from error
    raise ValueError(
        "budget must be { epsilon = NUMBER, delta = NUMBER }, of which only epsilon is required;"
        f" got {table!r}"
    )


def _read_rules(protocol: str, table: Any, general: Mapping[str, Any]) -> Rules:
    """Return the rules for a protocol."""
    place = f'protocols."{protocol}"'
    if find_estimator(protocol) is None:
        prefixes = " and ".join(f"{prefix}NAME" for prefix in wrappers())
        names = ", ".join(protocols())
        raise ValueError(
            f"{place} is not a protocol; the protocols are {names}, and also {prefixes}"
        )
    _check_table(place, table, "the rules for this protocol")
    rest = dict(table)
    parameters = rest.pop("parameters", {})
    _check_names(f"{place}.", rest, [*KINDS, "parameters"])
    rules = {name: _check_rule(f"{place}.", name, value) for name, value in rest.items()}
    _check_table(f"{place}.parameters", parameters, "one entry per parameter")
    known = _parameters(protocol)
    for name in parameters:
        if name not in known:
            raise ValueError(
                f"{place}.parameters.{name}: the requests of this protocol have no such parameter;"
                f" they have {', '.join(known) or 'none'}"
            )
    allowed = {
        name: _read_allowed(f"{place}.parameters.{name}", value)
        for name, value in parameters.items()
    }
    return Rules(**{**general, **rules}, parameters=allowed)


def _parameters(protocol: str) -> list[str]:
    """Return the names of the parameters of a protocol's requests for data.

    They are the fields that are not arrays, and the properties.
    """
    around, name = unwrapped(protocol)
    estimators = [one for one in (*around, find_estimator(name)) if one is not None]
    clients = [one.client_class for one in estimators]
    clients += [scorer for one in clients for scorer in getattr(one, "scorers", ())]
    requests = [kind for client in clients for kind in client.handlers]
    names = [
        name
        for request in requests
        if request.asks_for_data
        for name in (*request.__struct_fields__, *_properties(request))
        if name not in arrays(request)
    ]
    return sorted(set(names))


def _properties(request: type[Message]) -> list[str]:
    """Return the names of what follows from the fields of a request, such as its n_clusters."""
    return [
        name
        for base in request.__mro__
        for name, value in vars(base).items()
        if isinstance(value, property) and not name.startswith("_")
    ]


def _read_allowed(place: str, value: Any) -> Allowed:
    """Return the allowed values of a parameter."""
    accepted = "{ min = NUMBER, max = NUMBER } or { in = [VALUE, …] }"
    match value:
        case {"in": list(values)} if len(value) == 1 and values:
            return Allowed(values=tuple(values))
        case dict() if value and value.keys() <= {"min", "max"}:
            numbers = [one for one in value.values() if type(one) in (int, float)]
            allowed = Allowed(value.get("min"), value.get("max"))
            in_order = allowed.min is None or allowed.max is None or allowed.min <= allowed.max
            if len(numbers) == len(value) and in_order:
                return allowed
    raise ValueError(f"{place} must be {accepted}; got {value!r}")
