from .boosting.estimator import FederatedXGBClassifier as FederatedXGBClassifier
from .boosting.estimator import FederatedXGBRegressor as FederatedXGBRegressor
from .clustering.density.approximate import ApproximateDBSCAN as ApproximateDBSCAN
from .clustering.density.dbdc import DBDC as DBDC
from .clustering.density.horizontal import HorizontalDBSCAN as HorizontalDBSCAN
from .clustering.density.ppdbdc import PPDBDC as PPDBDC
from .clustering.density.sdbdc import SDBDC as SDBDC
from .clustering.density.vertical import VerticalDBSCAN as VerticalDBSCAN
from .clustering.kmeans import FederatedKMeans as FederatedKMeans
from .clustering.mixtures.dbscan import GaussianMixtureDBSCAN as GaussianMixtureDBSCAN
from .clustering.mixtures.estimator import FederatedGaussianMixture as FederatedGaussianMixture
from .evaluation.clustering import FederatedClusteringScore as FederatedClusteringScore
from .evaluation.predictions import FederatedEvaluation as FederatedEvaluation
from .evaluation.regression_scores import FederatedRegressionScore as FederatedRegressionScore
from .evaluation.selection.clusters import GaussianMixtureSelection as GaussianMixtureSelection
from .evaluation.selection.clusters import KMeansSelection as KMeansSelection
from .evaluation.selection.density import DensitySuggestion as DensitySuggestion
from .evaluation.selection.density import suggest_parameters as suggest_parameters
from .sites.leave_one_out import LeaveOneSiteOut as LeaveOneSiteOut
from .tables.alignment import AlignedRows as AlignedRows
from .tables.components.estimator import FederatedPCA as FederatedPCA
from .tables.pipeline.estimator import FederatedPipeline as FederatedPipeline
from .tables.schema.schema import Schema as Schema
from .tables.summary.estimator import FederatedSummary as FederatedSummary

__version__: str
