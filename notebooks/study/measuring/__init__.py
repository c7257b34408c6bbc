"""Measurements over all methods: accuracy, faults, speed and growth."""
