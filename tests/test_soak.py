"""Many runs over HTTP in which sites are killed at random and start again.

Only the installed commands are used. The model and the labels of each run are byte-identical to
those of an undisturbed run of the protocol, and no run needs more than those before. The number of
runs is ``SOAK_RUNS``, by default 200; the seed of the kills is ``SOAK_SEED``.
"""

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.soak

PROGRAM = str(Path(sys.executable).with_name("fedlib"))
KERNELS = Path(__file__).parents[1] / "notebooks" / "compile_kernels.py"
SITES = (1, 2, 3)
LONGEST = 180  # seconds without a new line of the server after which a run hangs
PROTOCOLS = {
    "horizontal-dbscan": ["--cell-size=0.5", "--min-samples=4"],
    "vertical-dbscan": ["--eps=0.4", "--min-samples=4"],
    "dbdc": ["--eps=0.4", "--min-samples=4"],
    "sdbdc": ["--eps=0.4", "--min-samples=4"],
    "ppdbdc": ["--eps=0.4", "--min-samples=4"],
    "kmeans": ["--n-clusters=3", "--method=lloyd", "--random-state=0"],
    "gaussian-mixture": ["--n-components=3", "--method=em", "--random-state=0"],
    "gaussian-mixture-dbscan": ["--eps=0.4", "--min-samples=4", "--random-state=0"],
    "xgboost": ["--n-trees=3", "--max-depth=3", "--method=histogram"],
    "xgb-regressor": ["--n-trees=3", "--max-depth=3"],
}


def write_data(folder):
    """Write the rows of each site, and its columns of the rows that all sites share."""
    rng = np.random.default_rng(0)
    centres = np.repeat([[0.0, 0.0], [4.0, 1.0], [1.0, 5.0]], 40, axis=0)
    for site in SITES:
        X = centres + rng.normal(scale=0.4, size=centres.shape)
        rows = pd.DataFrame(X, columns=["x", "y"]).assign(kind=np.repeat(["a", "b", "b"], 40))
        rows["height"] = rows["x"] + rows["y"]
        rows.to_csv(folder / f"rows-{site}.csv", index=False)
        columns = pd.DataFrame({f"column-{site}": rng.permutation(np.tile(centres[:, 0], 1))})
        columns.to_csv(folder / f"columns-{site}.csv", index=False)


class Run:
    """One run of one protocol in a folder of its own."""

    def __init__(self, protocol, data, folder):
        folder.mkdir()
        self.protocol, self.data, self.folder = protocol, data, folder
        options = ["--clients=3", "--bind=127.0.0.1:0", "--model-out=model.npz"]
        patience = ["--rejoin-timeout=120", "--gone-after=1", "--linger=2"]
        self.server = self.start(
            "server", "serve", protocol, *PROTOCOLS[protocol], *options, *patience
        )
        self.url = self.wait_for(r"at (http://\S+)")
        self.wait_for(r"site-N\.token")
        self.sites = {site: self.join(site) for site in SITES}
        self.peak = dict.fromkeys(["kB", "threads", "descriptors"], 0)

    def start(self, name, *arguments):
        with (self.folder / f"{name}.log").open("a") as log:
            return subprocess.Popen(
                [PROGRAM, *arguments], cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
            )

    def wait_for(self, pattern):
        for _ in range(20 * LONGEST):
            if found := re.search(pattern, (self.folder / "server.log").read_text()):
                return found[found.re.groups]
            assert self.server.poll() is None, (self.folder / "server.log").read_text()
            time.sleep(0.05)
        raise AssertionError(f"the server does not print {pattern}")

    def join(self, site):
        kind = "columns" if self.protocol == "vertical-dbscan" else "rows"
        table = "--columns=x,y" if kind == "rows" else f"--columns=column-{site}"
        targets = {"xgboost": ["--target=kind"], "xgb-regressor": ["--target=height"]}
        options = targets.get(self.protocol, []).copy()
        options += [f"--random-state={site}"] if self.protocol == "ppdbdc" else []
        return self.start(
            f"site-{site}",
            "join",
            self.url,
            f"--data={self.data / f'{kind}-{site}.csv'}",
            table,
            f"--token-file=tokens/site-{site}.token",
            f"--state-dir=state-{site}",
            f"--labels-out=labels-{site}.npy",
            *options,
        )

    def kill(self, site):
        """Kill a site that is not finished, and start it again."""
        self.sites[site].kill()
        self.sites[site].wait(LONGEST)
        if not (self.folder / f"labels-{site}.npy").exists():
            self.sites[site] = self.join(site)

    def logs(self):
        """Return what the server and the sites have printed."""
        return {path.stem: path.read_text() for path in sorted(self.folder.glob("*.log"))}

    def measure(self):
        """Update the largest memory and numbers of threads and descriptors of the server."""
        try:
            status = Path(f"/proc/{self.server.pid}/status").read_text()
            memory, threads = (
                int(re.search(rf"^{name}:\s+(\d+)", status, re.M)[1])
                for name in ("VmHWM", "Threads")
            )
            descriptors = len(os.listdir(f"/proc/{self.server.pid}/fd"))
        except (OSError, TypeError):  # it ends, or this is not Linux
            return
        now = {"kB": memory, "threads": threads, "descriptors": descriptors}
        self.peak = {name: max(value, now[name]) for name, value in self.peak.items()}

    def finish(self, kills):
        """Wait for the end; ``kills`` are the times, in seconds from now, and the sites."""
        begin, kills = time.monotonic(), sorted(kills)
        printed, changed = 0, begin
        while self.server.poll() is None:
            if printed != (size := (self.folder / "server.log").stat().st_size):
                printed, changed = size, time.monotonic()
            assert time.monotonic() - changed < LONGEST, f"the run hangs: {self.logs()}"
            self.measure()
            while kills and time.monotonic() - begin >= kills[0][0]:
                self.kill(kills.pop(0)[1])
            time.sleep(0.02)
        assert self.server.returncode == 0, (self.folder / "server.log").read_text()
        for site in self.sites.values():
            site.wait(LONGEST)
        names = ["model.npz", *(f"labels-{site}.npy" for site in SITES)]
        return [(self.folder / name).read_bytes() for name in names]


def test_runs_with_random_kills(tmp_path):
    # Otherwise the four processes of each first run would compile the same kernels side by side.
    subprocess.run([sys.executable, KERNELS], check=True)
    write_data(tmp_path)
    rng = random.Random(int(os.environ.get("SOAK_SEED", "0")))
    names, expected, seconds, peaks = list(PROTOCOLS), {}, {}, {}
    for name in names:
        begin = time.monotonic()
        expected[name] = Run(name, tmp_path, tmp_path / name).finish([])
        seconds[name] = time.monotonic() - begin
    for number in range(int(os.environ.get("SOAK_RUNS", "200"))):
        name = names[number % len(names)]
        kills = [
            (rng.uniform(0, seconds[name]), rng.choice(SITES)) for _ in range(rng.randint(1, 4))
        ]
        run = Run(name, tmp_path, tmp_path / f"{number}-{name}")
        assert run.finish(kills) == expected[name], (number, name, kills)
        peaks.setdefault(name, []).append(run.peak)
    for name, measured in peaks.items():
        for what in ("kB", "threads", "descriptors") if len(measured) >= 8 else ():
            values, quarter = [peak[what] for peak in measured], len(measured) // 4
            growth = median(values[-quarter:]) / median(values[:quarter])
            assert growth < 1.2, (name, what, values)
