"""Transports, which carry a protocol's bytes between the server and its clients."""
