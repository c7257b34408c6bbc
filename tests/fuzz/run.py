"""Run a target under the coverage-guided fuzzer Atheris: ``run.py TARGET SECONDS [FOLDER]``.

New inputs that reach new code are added to FOLDER, by default to a temporary one. The kept corpus
is read and not changed. An input that makes the target fail is written to the working directory,
and the exit code is not 0. ``make test-fuzz`` runs all targets.
"""

import sys
import tempfile
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "fedlib" / "kernels"


def main(target, seconds, folder=None):
    import atheris  # in an environment of its own

    # Numba compiles kernels from their bytecode, so instrumented ones cannot be compiled. Atheris
    # instruments whole packages, so each kernel is excluded by name.
    kernels = [f"fedlib.kernels.{path.stem}" for path in KERNELS.glob("*.py")]
    with atheris.instrument_imports(include=["fedlib"], exclude=kernels):
        from targets import CORPUS, TARGETS
    with tempfile.TemporaryDirectory() as temporary:
        options = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=10", "-verbosity=0"]
        folders = [folder or temporary, str(CORPUS / target)]
        atheris.Setup([sys.argv[0], *options, *folders], TARGETS[target])
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
