from .alignment import AlignedRows as AlignedRows
from .approximate_dbscan import ApproximateDBSCAN as ApproximateDBSCAN
from .boosting.estimator import FederatedXGBClassifier as FederatedXGBClassifier
from .boosting.regressor import FederatedXGBRegressor as FederatedXGBRegressor
from .horizontal_dbscan import HorizontalDBSCAN as HorizontalDBSCAN
from .kmeans import FederatedKMeans as FederatedKMeans
from .mixtures.dbscan import GaussianMixtureDBSCAN as GaussianMixtureDBSCAN
from .mixtures.federated import FederatedGaussianMixture as FederatedGaussianMixture
from .pipeline.federated import FederatedPipeline as FederatedPipeline
from .representatives.dbdc import DBDC as DBDC
from .representatives.ppdbdc import PPDBDC as PPDBDC
from .representatives.sdbdc import SDBDC as SDBDC
from .scores.clustering import FederatedClusteringScore as FederatedClusteringScore
from .scores.evaluation import FederatedEvaluation as FederatedEvaluation
from .selection.clusters import GaussianMixtureSelection as GaussianMixtureSelection
from .selection.clusters import KMeansSelection as KMeansSelection
from .selection.density import DensitySuggestion as DensitySuggestion
from .selection.density import suggest_parameters as suggest_parameters
from .summary.federated import FederatedSummary as FederatedSummary
from .vertical_dbscan import VerticalDBSCAN as VerticalDBSCAN

__version__: str
