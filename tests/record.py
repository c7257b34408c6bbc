"""Record what fedlib sends, gives, refuses and explains, and compare two commits by it.

``make record BASE=COMMIT`` runs this script in the working tree and in a copy of the commit, with
the examples of each, and prints what differs. What was recorded stays in ``_build/record``.
"""

import dataclasses
import hashlib
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np

HERE = Path.cwd()
sys.path[:0] = [str(HERE), str(HERE / "tests"), str(HERE / "tests" / "tables")]
N_TIMES = 3


def digest(value):
    """Return what a value contains, with a hash in place of the numbers of an array.

    Names of classes are left out: a class may get another name, or become a variant of another one.
    """
    if isinstance(value, np.ndarray):
        content = repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
        return [value.dtype.str, list(value.shape), hashlib.sha256(content).hexdigest()[:16]]
    if hasattr(value, "__struct_fields__"):
        return {name: digest(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: digest(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): digest(one) for key, one in value.items()}
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()[:16]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [digest(one) for one in value]
    return float(value).hex() if isinstance(value, float) else repr(value)


def arrays_of(message):
    """Return the digests of the arrays and numbers of a message, in any order of the fields."""
    return sorted(json.dumps(one) for one in digest(message).values())


def conversations():
    """Yield, for each example, what each client receives and sends, and the model."""
    from all_protocols import CASES, estimator_of, make_client

    from fedlib.protection.secure import SecureClient, simulated_identities
    from fedlib.protection.secure import identities as primitives
    from fedlib.testing import Recorder, seeded_noise

    for case in CASES:
        estimator, draw = estimator_of(case), np.random.default_rng(0).bytes
        parts = CASES[case][2]()
        clients = {f"{i}": make_client(estimator, part) for i, part in enumerate(parts)}
        if getattr(estimator, "secure", False):
            identities = simulated_identities([*clients])
            clients = {name: SecureClient(one, identities[name]) for name, one in clients.items()}
        recorder = Recorder(clients)
        with (
            seeded_noise(0),
            mock.patch.object(primitives, "new_seed", partial(draw, primitives.SEED)),
            mock.patch("Crypto.Protocol.SecretSharing.rng", draw),
        ):
            estimator.fit(recorder)
        steps = [
            [[name, arrays_of(one)] for name, one in sorted(side.items())]
            for exchange in recorder.exchanges
            for side in (exchange.requests, exchange.replies)
        ]
        fitted = {
            name: digest(value)
            for name, value in sorted(vars(estimator).items())
            if name.endswith("_") and name != "ledger_"
        }
        yield case, {"conversation": steps, "model": fitted}


def kinds():
    """Yield, for each kind of content and each reader, the value or the text of the error."""
    from test_kinds import KINDS, PAIRS, READERS

    for reader, kind in PAIRS:
        try:
            found = digest(READERS[reader](KINDS[kind]))
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        yield f"{reader}: {kind}", found


def helps():
    """Yield the text of ``--help`` of each command."""
    import click

    from fedlib.cli.main import cli

    def below(command, path):
        context = click.Context(command, info_name=path)
        yield path, command.get_help(context)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                yield from below(command.get_command(context, name), f"{path} {name}")

    yield from below(cli, "fedlib")


def times():
    """Yield, for each example, the least processor time of a fit in one process."""
    from all_protocols import CASES, estimator_of

    for case in CASES:
        taken = []
        for _ in range(N_TIMES):
            estimator, parts = estimator_of(case), CASES[case][2]()
            start = time.process_time()
            estimator.fit(parts)
            taken.append(time.process_time() - start)
        yield case, min(taken)


def record(path):
    """Write everything to a file."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDLIB_STATE"] = folder
        parts = {one.__name__: dict(one()) for one in (conversations, kinds, helps, times)}
    Path(path).write_text(json.dumps(parts, indent=1))


def compare(base, now):
    """Print what differs between two files, and return whether anything but a time does."""
    base, now = (json.loads(Path(path).read_text()) for path in (base, now))
    changed = False
    for part in ("conversations", "kinds", "helps"):
        for name in sorted(base[part].keys() | now[part].keys()):
            before, after = base[part].get(name), now[part].get(name)
            if before == after:
                continue
            changed = True
            if before is None or after is None:
                print(f"{part}: {name}: only {'after' if before is None else 'before'}")
            elif part == "conversations":
                print(f"{part}: {name}: {first_difference(before, after)}")
            else:
                print(f"{part}: {name}:\n  before: {before}\n  after:  {after}")
    both = base["times"].keys() & now["times"].keys()
    ratio = np.exp(np.mean([np.log(now["times"][one] / base["times"][one]) for one in both]))
    print(f"processor time of {len(both)} fits: {ratio:.3f} times that of before (geometric mean)")
    return changed


def first_difference(before, after):
    """Return where two conversations differ first, in words."""
    for i, (one, other) in enumerate(
        zip(before["conversation"], after["conversation"], strict=False)
    ):
        if one != other:
            return f"the {'replies' if i % 2 else 'requests'} of exchange {i // 2} differ"
    if len(before["conversation"]) != len(after["conversation"]):
        lengths = (len(one["conversation"]) // 2 for one in (before, after))
        return "{} exchanges before, {} after".format(*lengths)
    names = before["model"].keys() | after["model"].keys()
    return "the conversation is equal, but not " + ", ".join(
        sorted(name for name in names if before["model"].get(name) != after["model"].get(name))
    )


if __name__ == "__main__":
    if sys.argv[1] == "--compare":
        sys.exit(compare(*sys.argv[2:]))
    record(sys.argv[1])
