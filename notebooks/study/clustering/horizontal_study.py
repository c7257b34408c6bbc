"""What the page on horizontal DBSCAN compares with Marino's editions."""

import numpy as np
import pandas as pd

import study
from fedlib.clustering.density.horizontal import CellCounts
from fedlib.core.messages import decode, encode

HOW = {"M1": "assign=point", "M2": "assign=cell, with M2's look-up"}


def withholding(minimum):
    """Return a function for `Recorder`'s ``tamper`` with which a client omits smaller counts."""

    def shorten(request, reply):
        message = decode(reply)
        if not isinstance(message, CellCounts):
            return reply
        enough = message.counts >= minimum
        return encode(CellCounts(message.cells[enough], message.counts[enough]))

    return shorten


def agreement(runs, printed):
    """Return, for each visit order, how many scores it gives to the last printed digit.

    Parameters
    ----------
    runs : DataFrame
        One row per order, one column per metric.
    printed : mapping of metric to str
    """
    return sum(runs[metric].map("{:.4f}".format) == printed.get(metric) for metric in runs)


def verdict(source, data, runs, rows, of_dbscan):
    """Return the fidelity rows of an edition's federated column: medians over the orders.

    One run of the program gave all numbers of a column. If no order gives all of them together,
    those inside the spread of single scores are not explained, and differ.

    Parameters
    ----------
    source : {"M1", "M2"}
    data : Dataset
    runs : DataFrame
        As of `agreement`.
    rows, of_dbscan : DataFrame
        The edition's columns for the federated method and for DBSCAN, from `study.published`.
    """
    spread = {metric: (runs[metric].min(), runs[metric].max()) for metric in runs}
    federated = study.fidelity(rows, data, runs.median().to_dict(), spread)
    shares = np.array(
        [
            (runs[metric].map("{:.4f}".format) == stated).mean()
            for metric, stated in study.by_metric(rows).items()
        ]
    )
    n = len(runs)
    notes = [
        f"border=absorb, {HOW[source]}; {share:.1%} of {n} visit orders give the figure"
        for share in shares
    ]
    federated["note"] = pd.Series(notes, federated.index, dtype=str)  # none with a stand-in
    by_chance = (federated["status"] == "exact") & (shares <= 0.5)
    federated.loc[by_chance, "status"] = "within"
    repeated = rows["published"] == rows["metric"].map(study.by_metric(of_dbscan))
    wrong = (federated["status"] == "differs") & repeated
    note = f"printed twice: the DBSCAN column's value; outside the spread over {n} orders"
    federated.loc[wrong, ["status", "note"]] = "misprint", note
    most, wanted = agreement(runs, study.by_metric(rows)).max(), (~wrong).sum()
    apart = (federated["status"] == "within") & (most < wanted)
    note = f"; inside the spread by itself, but no order gives more than {most} of the {wanted}"
    federated.loc[apart, "note"] += note + " numbers of this column that are no misprints"
    federated.loc[apart, "status"] = "differs"
    return federated
