"""What a site has: its client, and saved models."""
