"""The core: messages, the two sides of a protocol, ledger, journal, base of the estimators."""
