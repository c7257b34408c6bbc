"""Scores: of a clustering without true classes, and of predictions for rows with known classes."""
