"""Density-based clustering: on grids, over columns, by representatives, and the DBSCAN engine."""
