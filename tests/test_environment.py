"""The environment of conda has the locked packages and this package."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_conda_installs_this_package_after_the_locked_ones():
    content = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    [of_pip] = [one["pip"] for one in content["dependencies"] if isinstance(one, dict)]
    assert of_pip == ["-r environment.lock", "-e ."]
    assert "pip" in content["dependencies"]


def test_the_packages_of_conda_are_those_of_the_lock_without_hashes():
    """With hashes, pip refuses to install a folder, which has none."""
    locked = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pins = re.findall(r"^([a-z0-9][^\\\n]*?) *\\?$", locked, re.MULTILINE)
    assert len(pins) > 200
    assert (ROOT / "environment.lock").read_text(encoding="utf-8").splitlines() == pins
