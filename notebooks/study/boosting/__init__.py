"""Boosted trees: splits, models, peers, and the search for Vasilopoulou's settings."""
