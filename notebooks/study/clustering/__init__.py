"""Clusters: steps, replicas, peers, and the figures of their pages."""
