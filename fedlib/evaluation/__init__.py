"""Scores of clusterings and predictions, and the choice of parameters."""
