"""What is collected here."""

collect_ignore = ["http_site.py"]  # a program; test_http runs it, and a message is defined once
