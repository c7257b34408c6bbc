"""A protocol of fedlib on Flower."""
