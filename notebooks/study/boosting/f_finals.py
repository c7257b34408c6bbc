"""The whole search for the settings of Vasilopoulou, with the most plausible ones on more splits.

It continues the journal of `study.boosting.f_search`:

    python -m study.boosting.f_finals book/results/f_search.csv --minutes 60 --finals
"""

import argparse
from itertools import chain

import numpy as np

from study.boosting import f_likelihood
from study.boosting.f_search import (
    CONDITIONS,
    FEDERATED,
    FINAL_SPLITS,
    ORIGINAL,
    SETTINGS,
    Job,
    Journal,
    kind_of,
    plan,
    read,
    search,
)


def search_all(journal, minutes=np.inf):
    """Run all jobs of the plan that a journal lacks, and then those of `finals`."""
    search(Journal(journal), plan(), minutes)
    return search(Journal(journal), finals(journal), minutes)


def finals(journal):
    """Yield the jobs of the most plausible setting of each table, on `FINAL_SPLITS` splits."""
    runs = read([journal])
    chosen = f_likelihood.chosen(runs)
    for _, row in chosen.sort_values("table").iterrows():
        table = row["table"]
        for seed in range(FINAL_SPLITS[kind_of(table)]):
            for method in (ORIGINAL, FEDERATED):
                setting = f_likelihood.setting_of(row, method)
                for condition in CONDITIONS[table]:
                    yield Job(table, condition, method, setting, seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("journal")
    parser.add_argument("--minutes", type=float, default=np.inf)
    parser.add_argument("--stages", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument(
        "--finals",
        action="store_true",
        help="then run the most plausible setting of each table on more splits",
    )
    options = parser.parse_args()
    jobs = plan(options.stages)
    if options.finals:
        jobs = chain(jobs, finals(options.journal))  # chosen when all jobs of the plan are done
    remaining = search(Journal(options.journal), jobs, options.minutes)
    print(f"{remaining} jobs remain")


if __name__ == "__main__":
    main()
