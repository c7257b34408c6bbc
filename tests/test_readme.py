"""The README's examples are run."""

import doctest
from pathlib import Path


def test_the_tour_prints_what_the_readme_shows():
    readme = Path(__file__).parents[1] / "README.md"
    result = doctest.testfile(str(readme), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0
