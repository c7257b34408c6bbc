"""Boxes and shares: what somebody who lacks a key, or has too few shares, can see."""

import numpy as np
import pytest
from scipy.stats import chi2

pytest.importorskip("Crypto")
from fedlib.protection.secure import identities as primitives


def test_a_box_opens_with_its_key_only():
    """The server passes boxes on, and has the public halves of both keys."""
    sender, receiver = (primitives.private_key(primitives.new_seed()) for _ in range(2))
    keys = [primitives.public_key(one) for one in (sender, receiver)]
    shared = primitives.agree_on_key(sender, keys[1], b"box")
    box = primitives.seal(shared, b"share")
    assert primitives.open_box(primitives.agree_on_key(receiver, keys[0], b"box"), box) == b"share"
    stranger = primitives.private_key(primitives.new_seed())
    for key in keys:
        assert primitives.open_box(primitives.agree_on_key(stranger, key, b"box"), box) is None
    assert primitives.open_box(primitives.agree_on_key(sender, keys[1], b"mask"), box) is None
    for i in range(len(box)):
        changed = box[:i] + bytes([box[i] ^ 1]) + box[i + 1 :]
        assert primitives.open_box(shared, changed) is None


@pytest.mark.parametrize("secret", [bytes(16), bytes(range(16))])
def test_too_few_shares_are_random_numbers(secret):
    """Whatever the secret is, two of five shares with the threshold 3 are uniform together."""
    drawn = [primitives.split(secret, 3, 5) for _ in range(1500)]
    shares = np.array([[list(share) for share in one] for one in drawn], np.uint8)
    first, second = shares[:, 0], shares[:, 3]
    for seen in (first, second, first ^ second):
        counts = np.bincount(seen.ravel(), minlength=256)
        statistic = np.square(counts - counts.mean()).sum() / counts.mean()
        assert chi2.ppf(1e-5, 255) < statistic < chi2.ppf(1 - 1e-5, 255)
    for one in drawn[:20]:
        assert primitives.combine({0: one[0], 2: one[2], 4: one[4]}) == secret
        assert primitives.combine({0: one[0], 2: one[2]}) != secret
