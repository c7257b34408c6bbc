"""Transports: what carries a protocol's bytes between the server and its clients."""
