"""Density-based clustering by representatives: DBDC, SDBDC and PPDBDC.

``base`` contains the code that the three protocols share; each of them has a module.
"""
