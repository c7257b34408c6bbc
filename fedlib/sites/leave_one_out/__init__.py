"""Leave-one-site-out: validation over sites as one protocol, with one ledger, over any transport.

For each site, the protocol of an estimator runs among the other sites, in the same sessions. At the
end each site gets the model that was fitted without it, predicts its rows, and answers the requests
about scores that the estimators of `fedlib.evaluation` send.
"""

from fedlib.sites.leave_one_out.estimator import LeaveOneSiteOut
from fedlib.sites.leave_one_out.flow import LeftOutClient, SiteScores, leave_one_site_out

__all__ = ["LeaveOneSiteOut", "LeftOutClient", "SiteScores", "leave_one_site_out"]
