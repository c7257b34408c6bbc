"""Federated gradient boosting in the manner of XGBoost."""
