"""The server's side of leave-one-site-out: one fold per site, then the scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from fedlib.core.estimator import Federated
from fedlib.core.messages import Message
from fedlib.core.names import listed
from fedlib.core.protocol import Flow, GroupsTooSmall, Reject, Replies
from fedlib.evaluation.class_scores import ClassScores
from fedlib.evaluation.clustering import ClusterScores
from fedlib.evaluation.messages import NoRows
from fedlib.evaluation.numbers import NumberScores
from fedlib.sites.leave_one_out.messages import BeginFold, TakeModel
from fedlib.sites.models import to_bytes

MIN_SITES = 3  # so that each fold is fitted to more than one site

Model = TypeVar("Model")


@dataclass(frozen=True)
class SiteScores:
    """The scores of the models that were each fitted without one site.

    Attributes
    ----------
    sites : tuple of str
        The sites that were left out and scored; empty if there is one score of all sites together.
    scores : tuple of ClassScores, NumberScores or ClusterScores
        That of each site's rows, or one of the rows of all sites.
    """

    sites: tuple[str, ...]
    scores: tuple[ClassScores | NumberScores | ClusterScores, ...]


class NobodyAnswers(ValueError):
    """All sites to which a request went are passive or declined it, or have left the run."""


def leave_one_site_out(
    fold: Callable[[int, int], Flow[Any]],
    fitted: Callable[[Any], Federated],
    score: Callable[[Federated, int, str], Flow[Any]],
    together: bool,
) -> Flow[SiteScores]:
    """Return the server flow.

    Parameters
    ----------
    fold : callable
        Returns the flow of a fold, for its number and the count of all sites.
    fitted : callable
        Returns the fitted estimator for the model of a fold.
    score : callable
        Returns the flow that scores the rows of sites, for the fitted estimator of a fold, the
        count of all sites, and the name of the site, empty for all together.
    together : bool
        Whether the rows of all sites are scored together, and not those of each site.

    Raises
    ------
    ValueError
        When there are fewer than three sites, or nobody has a score.

    Warns
    -----
    UserWarning
        For each site without a score, such as one without rows, or one without which the others'
        rows cannot be fitted.
    """
    models: dict[str, Federated] = {}
    failure: ValueError | None = None
    replies = yield BeginFold()
    sites, n_sites = Sites(list(replies), set(replies.lost)), replies.n_all
    if n_sites < MIN_SITES:
        raise ValueError(
            f"leaving one site out needs at least {MIN_SITES} sites, so that each model is fitted"
            f" to more than one; got {n_sites}"
        )
    for number, site in enumerate(sites.names):
        if site in sites.lost:
            continue
        if number:
            sites.note((yield BeginFold()))
        if reasons := sites.small:
            sites.note((yield Reject(reasons)))
        if site not in sites.lost:
            others = [name for name in sites.names if name != site]
            try:
                models[site] = fitted((yield from sites.run(fold(number, n_sites), others)))
            except GroupsTooSmall:
                raise
            except ValueError as error:  # the rows of the others, which another fold has not
                failure = failure or error
                _warn_of_no_score(site, f"without it, {error}")
    if failure is not None and not models:
        raise failure
    files = {site: to_bytes(one) for site, one in models.items() if site not in sites.lost}
    sites.note((yield {site: TakeModel(data) for site, data in files.items()}))
    if together:
        flow = score(next(iter(models.values())), n_sites, "")
        return SiteScores((), ((yield from sites.run(flow, list(files))),))
    scores: dict[str, Any] = {}
    for site in files:
        try:
            scores[site] = yield from sites.run(score(models[site], n_sites, site), [site])
        except NobodyAnswers as nobody:
            _warn_of_no_score(site, str(nobody))
        except NoRows:
            _warn_of_no_score(site, "it has no rows")
    if not scores:
        raise ValueError("no site has a score: all are passive, empty or declined")
    return SiteScores(tuple(scores), tuple(scores.values()))


def _warn_of_no_score(site: str, reason: str) -> None:
    warnings.warn(f"there is no score of site {site!r}: {reason}", stacklevel=3)


@dataclass
class Sites:
    """The sites of a run, among some of which a flow runs.

    Attributes
    ----------
    names : list of str
        All sites at the beginning.
    lost : set of str
        Those that have left the run.
    refused : set of str
        Those that have declined because of small groups, and decline all further requests.
    """

    names: list[str]
    lost: set[str]
    refused: set[str] = field(default_factory=set)

    @property
    def small(self) -> dict[str, str]:
        """The reason why each site is excluded that has declined because of small groups."""
        return dict.fromkeys(self.refused - self.lost, "declined in an earlier fold (min_count)")

    def note(self, replies: Replies) -> None:
        """Note which sites have left the run."""
        self.lost |= set(replies.lost)

    def run(self, flow: Flow[Model], members: Collection[str]) -> Flow[Model]:
        """Run a flow among some sites, the members.

        To the flow, the other sites are passive: it gets their names among those that decline, and
        they get no request. So all that holds for passive clients holds for them.

        Raises
        ------
        NobodyAnswers
            When all members that have not left decline a request, or none is left.
        """
        resume: Callable[[], Any] = partial(next, flow)
        while True:
            try:
                asked = resume()
            except StopIteration as finished:
                model: Model = finished.value
                return model
            if isinstance(asked, Message):
                asked = {name: asked for name in members if name not in self.lost}
            elif not isinstance(asked, Reject):  # a passive site would get what delivers a result
                asked = {name: one for name, one in asked.items() if name in members}
            try:
                replies = (yield asked) if asked else Replies({})
            except Exception as error:  # that the flow may handle
                if isinstance(error, GroupsTooSmall):
                    self.refused |= set(error.clients)
                resume = partial(flow.throw, error)
                continue
            self.note(replies)
            if not isinstance(asked, Reject) and self.lost.union(replies.declined).issuperset(
                members
            ):
                raise NobodyAnswers(f"passive, declined or lost: {listed(list(members))}")
            absent = {name for name in self.names if name not in members}.difference(self.lost)
            declined = [name for name in self.names if name in absent.union(replies.declined)]
            lost = [name for name in self.names if name in self.lost]
            resume = partial(flow.send, Replies(dict(replies), declined, lost, replies.combined))
