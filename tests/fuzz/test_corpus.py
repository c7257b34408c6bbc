"""The kept inputs of the fuzzer: those that reached new code, and those that once failed."""

import pytest

from .targets import CORPUS, TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_kept_inputs(target):
    inputs = sorted((CORPUS / target).iterdir())
    assert inputs
    for path in inputs:
        TARGETS[target](path.read_bytes())
