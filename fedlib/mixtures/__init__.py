"""Federated Gaussian mixtures, and DBSCAN through them."""
