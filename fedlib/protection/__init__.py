"""Protection: masked sums, noise, and the rules of a site."""
