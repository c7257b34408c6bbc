"""Federated clustering and boosting: protocols written once, run over any transport."""

from fedlib.horizontal_dbscan import HorizontalDBSCAN
from fedlib.vertical_dbscan import VerticalDBSCAN

__all__ = ["HorizontalDBSCAN", "VerticalDBSCAN"]
__version__ = "0.1.0"
