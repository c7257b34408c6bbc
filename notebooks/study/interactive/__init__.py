"""Figures that a reader can change."""
