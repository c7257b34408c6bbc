"""What a server learns from replies, and what protection costs."""
