"""HTTP: sites call a server, so no site has to accept a connection."""
