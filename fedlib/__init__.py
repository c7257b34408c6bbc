"""Federated clustering and boosting: protocols written once, run over any transport."""

from fedlib.horizontal_dbscan import HorizontalDBSCAN

__all__ = ["HorizontalDBSCAN"]
__version__ = "0.1.0"
