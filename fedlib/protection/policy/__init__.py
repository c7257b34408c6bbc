"""Policies: the rules of a site about what may leave it, and the record of what has left it.

`GuardedClient` wraps a protocol's client. It declines a request that a rule forbids, and withholds
a reply that a rule forbids. The server learns only the name of the rule. The wrapper knows no
transport, so the same rules hold in process, over HTTP and on Flower.

The rules look at one request or reply at a time. They do not find out what a server can conclude
from several replies, such as the difference between two counts.
"""

from fedlib.protection.policy.guard import GuardedClient, GuardedState
from fedlib.protection.policy.rules import Allowed, Policy, Rules

__all__ = ["Allowed", "GuardedClient", "GuardedState", "Policy", "Rules"]
