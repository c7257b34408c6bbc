"""The claims and numbers of the sources: their names, records and verdicts."""
