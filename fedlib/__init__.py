"""Federated clustering and boosting: protocols written once, run over any transport."""

from fedlib.boosting import FederatedXGBClassifier
from fedlib.dbdc import DBDC
from fedlib.gmm import FederatedGaussianMixture
from fedlib.gmm_dbscan import GaussianMixtureDBSCAN
from fedlib.horizontal_dbscan import HorizontalDBSCAN
from fedlib.kmeans import FederatedKMeans
from fedlib.ppdbdc import PPDBDC
from fedlib.sdbdc import SDBDC
from fedlib.vertical_dbscan import VerticalDBSCAN

__all__ = [
    "DBDC",
    "PPDBDC",
    "SDBDC",
    "FederatedGaussianMixture",
    "FederatedKMeans",
    "FederatedXGBClassifier",
    "GaussianMixtureDBSCAN",
    "HorizontalDBSCAN",
    "VerticalDBSCAN",
]
__version__ = "0.1.0"
