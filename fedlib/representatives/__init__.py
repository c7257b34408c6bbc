"""Density-based clustering through representatives: DBDC, SDBDC and PPDBDC."""
