"""Figures from arrays and data frames."""
