"""Boosted trees: splits, models, peers, and the search for F's settings."""
