"""Differential privacy: replies with so much noise that no single row can be seen in them.

**The guarantee.** The unit of privacy is one row that is added or removed. With ``epsilon=`` and
``delta=``, all replies of a client in a run together are (epsilon, delta)-differentially private:
what the server concludes with one row is almost as likely without it. It holds against the server,
the other clients, and everybody who sees the result. The numbers and names of the features, and the
time and the memory that a reply takes are not covered. A person with several rows is protected
less: with k rows, epsilon is up to k times as large.

**Where the noise is.** Without secure sums, each client adds all the noise. With ``secure=True``,
the server sees only sums, and each client adds a share of the noise. The shares of the smallest
count of honest clients that a sum can contain
(`fedlib.protection.secure.identities.honest_survivors`) are enough.

**How a protocol uses it.** It has a request and a reply of their own for noisy sums:

- The request is a `NoisyRequest`, with a field ``privacy: Privacy`` and the bounds of the rows, a
  `BoundsArray`. It does not state the scale of the noise. Its ``reply_lengths`` gives all lengths,
  and the base class checks them. The reply has only arrays of float64 within ±`NOISY`.
- A function computes the `Sensitivity` from the bounds. The client calls it with what the request
  contains, and clips its rows to these bounds itself: it never relies on a sensitivity that it
  receives.
- The client's handler rounds what each row adds with `quantise`, adds it up, and returns
  ``add_noise(values, sensitivity, request.privacy, self.n_shares)``, once for all values of the
  reply, also those that are 0. Values that are integers need no `quantise`.
- The flow knows the number of its requests beforehand, from the parameters alone. The estimator
  gives it an aggregation (`fedlib.protection.sums`) from ``self._noisy_sums(n_requests)`` of
  `fedlib.protection.estimator.ProtectedFederated`, with the `Privacy` of each request. The flow
  calls ``total, clients = yield from aggregation.sum(request)``. What it computes from the totals
  costs nothing.
- Nothing else may depend on the rows: no start, grid, cut or bin, no count of points, no kind of a
  column, and no failure. The handler refuses a request only by what it can check without the rows,
  such as the count of features, and checks it also if there are no rows. Then it answers for all
  rows, and clips what lies outside of the bounds. No sample of the rows is drawn: whether a row is
  in it could depend on the others.

**The budget of a site.** `Budget` limits the loss of all runs that are charged to the same file. It
is part of the site's policy (`fedlib.protection.policy`), which clients on Flower do not have: the
client charges each request with noise before it computes the reply. It declines other requests for
data, and those that exceed the budget (`DisclosureBudgetSpent`). Only the ``open_requests`` of the
client are free: their replies are the same for all rows.

**Tests.** The noise comes from the operating system. `fedlib.testing.seeded_noise` replaces it, so
that runs on two transports can be compared byte by byte.

Sources: C. Dwork, F. McSherry, K. Nissim, A. Smith, Calibrating noise to sensitivity in private
data analysis, TCC 2006, and those in `fedlib.protection.privacy.accounting`.
"""

from fedlib.core.messages import Privacy, privacy_of
from fedlib.protection.privacy.accounting import (
    Budget,
    Charge,
    DisclosureBudgetSpent,
    check_guarantee,
    epsilon_of,
    privacy_per_request,
    rho_of,
    split_guarantee,
)
from fedlib.protection.privacy.noise import (
    NOISY,
    BoundsArray,
    NoisyRequest,
    Sensitivity,
    add_noise,
    clipped,
    from_unit,
    noise_scale,
    quantise,
    to_unit,
)

__all__ = [
    "NOISY",
    "BoundsArray",
    "Budget",
    "Charge",
    "DisclosureBudgetSpent",
    "NoisyRequest",
    "Privacy",
    "Sensitivity",
    "add_noise",
    "check_guarantee",
    "clipped",
    "epsilon_of",
    "from_unit",
    "noise_scale",
    "privacy_of",
    "privacy_per_request",
    "quantise",
    "rho_of",
    "split_guarantee",
    "to_unit",
]
