"""Secure sums: the server learns the sum of the clients' values, but no single client's values.

`secure_sum` wraps a request of a protocol whose server only needs the sum of the replies. Each
client adds random masks to its values. The masks of two clients cancel out in the sum; the self
mask of each client is removed with the help of the others. Clients can be lost at every step.

**The adversary.** The server may deviate from the protocol in any way, and fewer than a third of
the sites may collude with it. It learns sums over more than two thirds of the sites and which sites
fail, but no values of a site, provided that all sites know each other's public keys and each keeps
its state during a run. In detail:

- Sites sign the keys of each sum, so the server cannot replace them by its own.
- Sites reveal shares only for a list of survivors that more than two thirds have signed, together
  with all keys and the protocol's request. So the server cannot ask different sites for different
  things.
- A site answers only one version of each step. It never reveals both kinds of shares of a client.
- The values for a sum are computed once. If that fails, the server receives `MaskingFailed`, and
  the site answers no further step of the run: its reason would depend on its rows.
- A site computes the binary digits of fixed point itself, from the limits and the count of rows
  that the request states, and clips each row to these limits. With few digits, a sum would count
  the sites above a threshold. It masks no reply to a request that states none.

**What it does not protect against.** The server sees the sums, and the sites see what it computes
from them. It also sees which site fails, once per run. On Flower, the server starts the sessions,
and can start one again without the state of the first. If one sum contains a client and another sum
of the same values does not, their difference is the client's values. A server can cause this by
claiming that the client is lost. Noise would prevent it (differential privacy).

A client can add anything to a sum: masked values cannot be checked, neither one by one nor against
what the client has sent before. A false sum is noticed only if no set of rows can have it. Then the
run ends, because nobody knows which client sent false values. A false sum that is possible can also
end the run later, if the other clients' values vanish next to it, as they would next to huge values
of an honest site (`ValueError`).

Source: K. Bonawitz, V. Ivanov, B. Kreuter, A. Marcedone, H. B. McMahan, S. Patel, D. Ramage,
A. Segal, K. Seth, Practical secure aggregation for privacy-preserving machine learning, CCS 2017.
"""

from fedlib.protection.secure.client import (
    BelowThreshold,
    ForgedKeys,
    MaskingFailed,
    NotMasked,
    RepeatedStep,
    SecureClient,
)
from fedlib.protection.secure.fixed_point import MIN_DIGITS, WrongDigits, digits_for
from fedlib.protection.secure.flow import ImpossibleSum, TooFewSurvivors, secure_sum
from fedlib.protection.secure.identities import (
    Identity,
    new_identity_key,
    simulated_identities,
    threshold,
)

__all__ = [
    "MIN_DIGITS",
    "BelowThreshold",
    "ForgedKeys",
    "Identity",
    "ImpossibleSum",
    "MaskingFailed",
    "NotMasked",
    "RepeatedStep",
    "SecureClient",
    "TooFewSurvivors",
    "WrongDigits",
    "digits_for",
    "new_identity_key",
    "secure_sum",
    "simulated_identities",
    "threshold",
]
