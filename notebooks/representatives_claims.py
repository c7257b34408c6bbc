"""P's claims on accuracy and time, judged by the measurements of two pages.

The texts of the claims are keys of the kept results: a change of one breaks the comparison with the
last complete run.
"""

import numpy as np
import pandas as pd
import study

SPLITS = ("regular", "arbitrary")
P_METHODS = ["PPDBDC 0.5", "PPDBDC 0.9"]  # the two curves of P's figures


class Claims:
    """A list of P's claims, each as a row of `study.claim`.

    Parameters
    ----------
    settings : mapping of str to (dataset, eps, min_samples)
    digits : int, optional
        Significant digits to keep of the measured values; by default all.
    """

    def __init__(self, settings, digits=None):
        self.settings = settings
        self.digits = digits
        self.rows = []

    def add(self, values, published, table, metric, method, setting, how="", note=""):
        """Judge one claim; for the parameters see `study.claim`."""
        condition = f"{setting}, {how}" if how else setting
        dataset = self.settings[setting][0]
        row = study.claim(values, published, f"§{table}", metric, dataset, method, condition, note)
        if self.digits is not None:
            for column in ("measured", "low", "high"):
                row[column] = float(f"{row[column]:.{self.digits}g}")
        self.rows.append(row)

    def to_frame(self):
        """Return one row per claim."""
        return pd.DataFrame(self.rows)


def by_claim(claims):
    """Return the claims grouped by their section, the algorithm and the claim's text."""
    algorithm = claims["method"].str.extract("^([A-Z]+)")[0].rename("of")
    return claims.groupby(["table", algorithm, "metric"], sort=False)


def count_claims(claims):
    """Return how many tests of each claim are exact, within or differ."""
    counts = by_claim(claims)["status"].value_counts().unstack()
    return counts.reindex(columns=["exact", "within", "differs"]).fillna(0).astype(int)


class AccuracyClaims(Claims):
    """P's claims on accuracy.

    Parameters
    ----------
    settings : mapping of str to (dataset, eps, min_samples)
    tuned, untuned, best, choices : DataFrame
        The results of the page.
    n_clients : list of int
    shares : list of float
        PPDBDC's values of eps_rep / eps.
    """

    def __init__(self, settings, tuned, untuned, best, choices, n_clients, shares):
        super().__init__(settings)
        self.tuned, self.untuned, self.best, self.choices = tuned, untuned, best, choices
        self.first, self.last = min(n_clients), max(n_clients)
        self.all_ppdbdc = [f"PPDBDC {share:g}" for share in shares]

    def judge_all(self):
        """Judge the claims on all settings and return one row per claim."""
        for setting in self.settings:
            for method in ("DBDC, core", "DBDC, kmeans"):
                self._dbdc(method, setting)
            gain = self.pick("DBDC, kmeans", setting) - self.pick("DBDC, core", setting)
            what = "k-means model more accurate than core model"
            self.add(gain, "above 0", "3.1", what, "DBDC", setting)
            for method in ["SDBDC", *self.all_ppdbdc]:
                self._number_of_parties(method, setting)
            for method in self.all_ppdbdc:
                self._ppdbdc(method, setting)
            self._min_samples(setting)
            self._representatives(setting)
        return self.to_frame()

    def pick(self, method, setting, how=None, column="accuracy", rows=None):
        """Return a column of one method's rows, by default tuned, indexed by test."""
        rows = self.tuned if rows is None else rows
        rows = rows[(rows["method"] == method) & (rows["setting"] == setting)]
        rows = rows if how is None else rows[rows["split"] == how]
        return rows.set_index(["split", "n_clients", "dealing"])[column].sort_index()

    def change(self, values):
        """Return what is gained from the fewest parties to the most, for each dealing."""
        return values.xs(self.last, level="n_clients") - values.xs(self.first, level="n_clients")

    def _dbdc(self, method, setting):
        regular, arbitrary = (self.pick(method, setting, how) for how in SPLITS)
        factor = self.pick(method, setting, column="factor")
        if setting.startswith("set 1"):
            what = f"falls from {self.first} to {self.last} parties"
            fall = self.change(regular)
            self.add(fall, "below 0", "4.3, Fig. 11", what, method, setting, "regular")
            more = self.change(arbitrary).to_numpy() - fall.to_numpy()
            what = "falls more than on regular splits"
            self.add(more, "below 0", "4.3, Fig. 12", what, method, setting)
        what = "needs a MinPts below DBSCAN's, as a share of it"
        self.add(factor["regular"], "below 1", "4.3", what, method, setting, "regular")
        what = "needs no MinPts much below DBSCAN's, as a share of it"
        how = "arbitrary", "half of it was taken for much lower"
        self.add(factor["arbitrary"], "above 0.5", "4.3", what, method, setting, *how)
        if setting == "set 2":
            for rows, how in ((self.tuned, "tuned MinPts"), (self.untuned, "DBSCAN's MinPts")):
                values = self.pick(method, setting, rows=rows)
                claim = "below 0.85", "4.3, Fig. 13", "is unusable"
                self.add(values, *claim, method, setting, how, "P calls less very low")

    def _number_of_parties(self, method, setting):
        regular, arbitrary = (self.pick(method, setting, how) for how in SPLITS)
        if setting.startswith("set 1"):
            claim = "above 0.85", "4.3, Fig. 11", "accuracy is high whatever the number of parties"
            note = "P calls less than 0.85 very low"
            self.add(regular, *claim, method, setting, "regular", note)
            claim = "below 0", "4.3, Fig. 12", "accuracy falls with the parties"
            self.add(self.change(arbitrary), *claim, method, setting, "arbitrary")
        what = "accuracy rises with the parties"
        self.add(self.change(regular), "above 0", "4.3", what, method, setting, "regular")
        if setting == "set 2":
            difference = self.change(self.pick(method, setting)).abs()
            parties = f"{self.first} and {self.last} parties"
            what = f"practically the same with {parties}, apart by"
            note = "0.02 was taken for practically the same"
            self.add(difference, "below 0.02", "4.3, Fig. 13", what, method, setting, "", note)

    def _ppdbdc(self, method, setting):
        accuracy = self.pick(method, setting)
        if setting == "set 2":
            at_last = accuracy.xs(self.last, level="n_clients")
            what = f"accuracy at {self.last} parties"
            self.add(at_last, "above 0.98", "4.3, Fig. 13", what, method, setting)
            gain = accuracy - self.pick("SDBDC", setting)
            what = "more accurate than SDBDC, by"
            self.add(gain, "above 0", "4.3, Fig. 13", what, method, setting)
        what = "accuracy in practically every test"
        self.add(accuracy, "above 0.9", "4.5", what, method, setting)
        rivals = ("DBDC, core", "DBDC, kmeans", "SDBDC")
        best = pd.concat([self.pick(rival, setting) for rival in rivals], axis=1).max(axis=1)
        self.add(accuracy - best, "above 0", "4.5", "best in every test, by", method, setting)

    def _min_samples(self, setting):
        factor = self.pick("SDBDC", setting, column="factor", rows=self.best)
        what = "needs a MinPts above DBSCAN's, as a multiple"
        self.add(factor, "above 1", "4.5", what, "SDBDC", setting)
        note = "0.01 was taken for nothing"
        gain = self.pick("SDBDC", setting, rows=self.best) - self.pick("SDBDC", setting)
        what = "needs the same MinPts for all parties: accuracy gained by one for each test"
        self.add(gain, "below 0.01", "4.3", what, "SDBDC", setting, "", note)
        if self.settings[setting][2] == 360:
            what = "MinPts for DBSCAN's 360"
            self.add(360 * factor, "500", "3.3", what, "SDBDC", setting)
        method = "PPDBDC 0.45"
        gain = self.pick(method, setting, rows=self.best) - self.pick(method, setting)
        what = "takes DBSCAN's MinPts: accuracy gained by another"
        self.add(gain, "below 0.01", "4.5", what, method, setting, "", note)

    def _representatives(self, setting):
        loss = self.pick("PPDBDC 0.9", setting) - self.pick("PPDBDC 0.25", setting)
        what = "a larger eps_rep is less accurate: 0.9 against 0.25"
        self.add(loss, "below 0", "3.3", what, "PPDBDC", setting)
        method = "PPDBDC 0.5"
        more = self.change(self.pick(method, setting, "regular", "representatives"))
        what = "more parties, more representatives, so fewer points each"
        self.add(more, "above 0", "4.3", what, method, setting, "regular")
        rows = self.choices[self.choices["setting"] == setting]
        rows = rows[rows["choice"].isin(["greedy", "random"])]
        paired = rows.pivot(
            index=["split", "dealing", "share"], columns="choice", values="accuracy"
        )
        gain = paired["random"] - paired["greedy"]
        what = "a random choice is as accurate as the greedy one, more by"
        note = "as many representatives; a loss of 0.01 was taken for nothing"
        self.add(gain, "above -0.01", "3.3", what, "SDBDC", setting, "", note)


class SpeedClaims(Claims):
    """P's claims on time.

    Parameters
    ----------
    settings : mapping of str to (dataset, eps, min_samples)
    indexed, by_parties, grown, greedy : DataFrame
        The results of the page; the second indexed by setting, split and number of parties.
    """

    def __init__(self, settings, indexed, by_parties, grown, greedy):
        super().__init__(settings, digits=2)
        self.indexed, self.by_parties, self.grown, self.greedy = indexed, by_parties, grown, greedy

    def judge_all(self):
        """Judge the claims on all settings and return one row per claim."""
        for setting in self.settings:
            here = self.by_parties.loc[setting]
            self._index(setting)
            self._sdbdc(setting, here)
            for method in ["DBDC, core", "DBDC, kmeans", "SDBDC", *P_METHODS]:
                self._number_of_parties(setting, here, method)
            self._dbdc(setting, here)
            growth = np.diff(self.grown.loc[setting, "difference"])
            what = "the more data, the more slower than PPDBDC: growth, ms"
            self.add(growth, "above 0", "4.4, Fig. 17", what, "SDBDC", setting)
            share = here["PPDBDC 0.9"] / here["PPDBDC 0.25"]
            what = "a larger eps_rep is faster: 0.9 against 0.25, as a share of the time"
            self.add(share, "below 1", "3.3", what, "PPDBDC", setting)
            times = self.greedy.loc[self.greedy["setting"] == setting, "times as fast"]
            what = "DynRep anew for every point takes very much time, times"
            note = "against keeping it up to date"
            self.add(times, "above 2", "3.3", what, "SDBDC", setting, "", note)
        return self.to_frame()

    def _index(self, setting):
        rows = self.indexed[self.indexed["setting"] == setting].dropna()
        ratio = rows["no index / grid"]
        what = "slower without an index than with one, times"
        self.add(ratio, "above 1", "4.4, Fig. 14", what, "DBSCAN", setting)
        if len(rows) > 1:
            growth = np.diff(np.log(ratio)) / np.diff(np.log(rows["points"]))
            what = "the more so the larger the set, growth of the ratio"
            self.add(growth, "above 0", "4.4, Fig. 14", what, "DBSCAN", setting)

    def _sdbdc(self, setting, here):
        what = "much slower than PPDBDC, times"
        for how in SPLITS:
            for method in P_METHODS:
                values = here.loc[how, "SDBDC"] / here.loc[how, method]
                note = f"against {method}; twice was taken for much"
                where = setting, f"{how}, {method}", note
                self.add(values, "above 2", "4.4, Fig. 15", what, "SDBDC", *where)

    def _number_of_parties(self, setting, here, method):
        numbers = here.index.get_level_values("n_clients")
        first, last = numbers.min(), numbers.max()
        times = here[method]
        fall = times.xs(last, level="n_clients") / times.xs(first, level="n_clients")
        what = f"faster with {last} parties than with {first}, as a share of the time"
        self.add(fall, "below 1", "4.4, Fig. 15", what, method, setting)
        what = f"but not in proportion ({first / last:g})"
        self.add(fall, f"above {first / last:g}", "4.4, Fig. 15", what, method, setting)
        slower = times.loc["arbitrary"] / times.loc["regular"]
        what = "slower on arbitrary splits, times"
        note = "P's arbitrary parts were uneven; here all have as many points"
        self.add(slower, "above 1", "4.4, Fig. 15", what, method, setting, "", note)

    def _dbdc(self, setting, here):
        what = "about as fast as PPDBDC: the slower by the faster"
        note = "up to twice, or half, was taken for like"
        for method in ("DBDC, core", "DBDC, kmeans"):
            ratio = here[method] / here["PPDBDC 0.5"]
            larger = np.maximum(ratio, 1 / ratio)
            self.add(larger, "below 2", "4.5", what, method, setting, "", note)
