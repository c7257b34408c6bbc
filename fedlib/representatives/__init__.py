"""Density-based clustering by representatives: DBDC, SDBDC and PPDBDC.

``base`` holds what the three protocols share; each of them has a module.
"""
