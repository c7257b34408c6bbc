"""Federated Gaussian mixtures, and DBSCAN on points drawn from Gaussian mixtures."""
