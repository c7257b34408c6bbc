"""DBSCAN on pooled points, on a grid or a tree."""
