"""Other ways to run a protocol: in threads, and as a deployment of Flower."""
