"""Federated clustering."""
