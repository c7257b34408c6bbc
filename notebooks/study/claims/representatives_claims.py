"""Gorawski and Łuk's claims on accuracy and time, tested by the measurements of two pages."""

import numpy as np
import pandas as pd

from study.claims import claims

SPLITS = ("regular", "arbitrary")
P_METHODS = ["PPDBDC 0.5", "PPDBDC 0.9"]  # the two curves of P's figures
DBDC_METHODS = ["DBDC, core", "DBDC, kmeans"]
MUCH = "0.05 was taken for much"
NOTHING = "0.01 was taken for nothing"
TWICE = "twice was taken for much"


class Claims:
    """A list of tests of Gorawski and Łuk's claims, each a row of `claims.judge`.

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

    def add(self, number, values, limit, method, setting, how="", note=""):
        """Test one claim in one setting; for the parameters see `claims.judge`."""
        condition = f"{setting}, {how}" if how else setting
        dataset = self.settings[setting][0]
        row = claims.judge(values, limit, "P", number, dataset, method, condition, note)
        if self.digits is not None:
            for column in ("measured", "low", "high"):
                row[column] = float(f"{row[column]:.{self.digits}g}")
        self.rows.append(row)

    def to_frame(self):
        """Return one row per test."""
        return pd.DataFrame(self.rows)


class AccuracyClaims(Claims):
    """Gorawski and Łuk's claims on accuracy.

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
        """Test the claims on all settings and return one row per test."""
        for setting in self.settings:
            for method in DBDC_METHODS:
                self._dbdc(method, setting)
            gain = self.pick("DBDC, kmeans", setting) - self.pick("DBDC, core", setting)
            self.add(1, gain, "above 0", "DBDC", setting, note="accuracy gained by k-means")
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
        """Return what is gained from the fewest parties to the most, for each split."""
        return values.xs(self.last, level="n_clients") - values.xs(self.first, level="n_clients")

    def _dbdc(self, method, setting):
        regular, arbitrary = (self.pick(method, setting, how) for how in SPLITS)
        factor = self.pick(method, setting, column="factor")
        parties = f"change from {self.first} to {self.last} parties"
        if setting.startswith("set 1"):
            fall = self.change(regular)
            self.add(9, fall, "below -0.05", method, setting, "regular", f"{parties}; {MUCH}")
            more = self.change(arbitrary).droplevel("split") - fall.droplevel("split")
            self.add(16, more, "below 0", method, setting, "", f"{parties}, less that on regular")
            gain = self.pick(method, setting) - self.pick(method, setting, rows=self.untuned)
            self.add(11, gain, "above 0", method, setting, "", "accuracy gained by tuning")
        note = "as a share of DBSCAN's; half of it was taken for much lower"
        self.add(14, factor["regular"], "at most 0.5", method, setting, "regular", note)
        self.add(15, factor["arbitrary"], "above 0.5", method, setting, "arbitrary", note)
        if setting == "set 2":
            for rows, how in ((self.tuned, "tuned MinPts"), (self.untuned, "DBSCAN's MinPts")):
                values = self.pick(method, setting, rows=rows)
                self.add(20, values, "below 0.85", method, setting, how, "P calls less very low")
        for rival in P_METHODS:
            less = self.pick(method, setting) - self.pick(rival, setting)
            self.add(34, less, "below -0.05", method, setting, f"against {rival}", MUCH)

    def _number_of_parties(self, method, setting):
        regular, arbitrary = (self.pick(method, setting, how) for how in SPLITS)
        parties = f"change from {self.first} to {self.last} parties"
        if setting.startswith("set 1"):
            note = "P calls less than 0.85 very low"
            self.add(10, regular, "above 0.85", method, setting, "regular", note)
            fall = self.change(arbitrary)
            self.add(17, fall, "below 0", method, setting, "arbitrary", parties)
        self.add(18, self.change(regular), "above 0", method, setting, "regular", parties)
        if setting == "set 2":
            difference = self.change(self.pick(method, setting)).abs()
            note = f"{parties}; 0.02 was taken for practically the same"
            self.add(21, difference, "below 0.02", method, setting, "", note)

    def _ppdbdc(self, method, setting):
        accuracy = self.pick(method, setting)
        if setting == "set 2":
            at_last = accuracy.xs(self.last, level="n_clients", drop_level=False)
            self.add(23, at_last, "above 0.98", method, setting)
            gain = accuracy - self.pick("SDBDC", setting)
            self.add(22, gain, "above 0", method, setting)
        self.add(31, accuracy, "above 0.9", method, setting)
        rivals = (*DBDC_METHODS, "SDBDC")
        best = pd.concat([self.pick(rival, setting) for rival in rivals], axis=1).max(axis=1)
        note = "accuracy less that of the best other"
        self.add(32, accuracy - best, "above 0", method, setting, "", note)

    def _min_samples(self, setting):
        factor = self.pick("SDBDC", setting, column="factor", rows=self.best)
        note = "as a multiple of DBSCAN's; 1.2 was taken for much"
        self.add(12, factor, "at least 1.2", "SDBDC", setting, "", note)
        gain = self.pick("SDBDC", setting, rows=self.best) - self.pick("SDBDC", setting)
        note = f"accuracy gained by the best MinPts of each test; {NOTHING}"
        self.add(13, gain, "below 0.01", "SDBDC", setting, "", note)
        if self.settings[setting][2] == 360:
            note = "500, give or take a tenth"
            self.add(6, 360 * factor, "450 to 550", "SDBDC", setting, "", note)
        method = "PPDBDC 0.45"
        gain = self.pick(method, setting, rows=self.best) - self.pick(method, setting)
        note = f"accuracy gained by another MinPts; {NOTHING}"
        self.add(35, gain, "below 0.01", method, setting, "", note)

    def _representatives(self, setting):
        loss = self.pick("PPDBDC 0.9", setting) - self.pick("PPDBDC 0.25", setting)
        self.add(7, loss, "below 0", "PPDBDC", setting, "", "eps_rep 0.9 against 0.25 eps")
        method = "PPDBDC 0.5"
        more = self.change(self.pick(method, setting, "regular", "representatives"))
        note = f"change from {self.first} to {self.last} parties"
        self.add(19, more, "above 0", method, setting, "regular", note)
        rows = self.choices[self.choices["setting"] == setting]
        rows = rows[(rows["choice"] == "random") & (rows["share"] == 1)]
        random = rows.set_index(["split", "dealing"])["accuracy"]
        note = f"the best of {len(random)} runs, since P states what can be"
        note += "; 0.9 was taken for very good"
        self.add(5, random.nlargest(1), "above 0.9", "SDBDC", setting, "", note)


class SpeedClaims(Claims):
    """Gorawski and Łuk's claims on time.

    Parameters
    ----------
    settings : mapping of str to (dataset, eps, min_samples)
    indexed, by_parties, grown, greedy, uneven : DataFrame
        The results of the page; the second indexed by setting, split and number of parties, the
        third by setting and number of points.
    anew, anew_grown : Series
        The times of P's step 4, as computed by P, indexed like `by_parties` and `grown`.
    """

    def __init__(self, settings, indexed, by_parties, grown, greedy, uneven, anew, anew_grown):
        super().__init__(settings, digits=2)
        self.indexed, self.by_parties, self.grown, self.greedy = indexed, by_parties, grown, greedy
        self.uneven, self.anew, self.anew_grown = uneven, anew, anew_grown

    def judge_all(self):
        """Test the claims on all settings and return one row per test."""
        for setting in self.settings:
            here = self.by_parties.loc[setting]
            self._index(setting)
            self._sdbdc(setting, here)
            for method in [*DBDC_METHODS, "SDBDC", *P_METHODS]:
                self._number_of_parties(setting, here, method)
            self._dbdc(setting, here)
            self._anew(setting)
            self._uneven(setting)
            growth = self.grown.loc[setting, "difference"].diff().dropna()
            note = "milliseconds more per step; DynRep updated"
            self.add(30, growth, "above 0", "SDBDC", setting, "", note)
            share = here["PPDBDC 0.9"] / here["PPDBDC 0.25"]
            self.add(8, share, "below 1", "PPDBDC", setting, "", "time at 0.9 by time at 0.25 eps")
            times = self.greedy.set_index("setting").loc[[setting], "times as fast"]
            note = f"times as long as with updates; {TWICE}"
            self.add(4, times, "above 2", "SDBDC", setting, "", note)
        return self.to_frame()

    def _index(self, setting):
        rows = self.indexed[self.indexed["setting"] == setting].dropna().set_index("points")
        ratio = rows["no index / grid"]
        note = f"times as long as with the grid; {TWICE}"
        self.add(24, ratio, "above 2", "DBSCAN", setting, "", note)
        if len(rows) > 1:
            slope = np.diff(np.log(ratio)) / np.diff(np.log(ratio.index))
            growth = pd.Series(slope, ratio.index[1:])
            note = "growth of the ratio, as a power of the number of points"
            self.add(25, growth, "above 0", "DBSCAN", setting, "", note)

    def _sdbdc(self, setting, here):
        for how in SPLITS:
            for method in [*DBDC_METHODS, *P_METHODS]:
                values = here.loc[how, "SDBDC"] / here.loc[how, method]
                note = f"times as long; {TWICE}; DynRep updated"
                self.add(26, values, "above 2", "SDBDC", setting, f"{how}, against {method}", note)

    def _anew(self, setting):
        """Test P26 and P30 with the time of P's own step, which alone is less than a run's."""
        of_sdbdc = "SDBDC, P's step 4"
        if setting in self.anew.index.get_level_values("setting"):
            anew, here = self.anew.loc[setting], self.by_parties.loc[setting]
            for how in anew.index.unique("split"):
                for method in [*DBDC_METHODS, *P_METHODS]:
                    values = (anew / here[method]).dropna().loc[how]
                    against, note = f"{how}, against {method}", f"times as long; {TWICE}"
                    self.add(26, values, "above 2", of_sdbdc, setting, against, note)
        if self.anew_grown.index.get_level_values("setting").tolist().count(setting) > 1:
            times = 1000 * self.anew_grown.loc[setting]
            growth = (times - self.grown.loc[setting, "PPDBDC 0.5"]).dropna().diff().dropna()
            note = "milliseconds more per step"
            self.add(30, growth, "above 0", of_sdbdc, setting, "", note)

    def _uneven(self, setting):
        rows = self.uneven[self.uneven["setting"] == setting]
        for method in [*DBDC_METHODS, "SDBDC", *P_METHODS] if len(rows) else []:
            slower = rows[rows["method"] == method].set_index("n_clients")["slower"]
            note = "strips of the map with different numbers of points"
            self.add(29, slower, "above 1", method, setting, "", note)

    def _number_of_parties(self, setting, here, method):
        numbers = here.index.get_level_values("n_clients")
        first, last = numbers.min(), numbers.max()
        times = here[method]
        fall = times.xs(last, level="n_clients") / times.xs(first, level="n_clients")
        note = f"time with {last} parties by time with {first}"
        self.add(27, fall, "below 1", method, setting, "", note)
        self.add(28, fall, f"above {first / last:g}", method, setting, "", note)

    def _dbdc(self, setting, here):
        note = "the slower by the faster; up to twice was taken for like"
        for method in DBDC_METHODS:
            ratio = here[method] / here["PPDBDC 0.5"]
            larger = np.maximum(ratio, 1 / ratio)
            self.add(33, larger, "below 2", method, setting, "", note)
