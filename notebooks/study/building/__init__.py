"""Programs that build the book: run notebooks, compile kernels, export records."""
