"""Boosted trees: splits, models, peers, and the search for Vasilopoulou's settings."""

# The kept rows were measured with these rules of XGBoost. F predates all releases whose rules are
# known, and names none, so these are as good as others.
RULES = "3.2"
