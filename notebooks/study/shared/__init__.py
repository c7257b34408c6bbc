"""What all pages share: data, published numbers, results, and what a page shows."""
