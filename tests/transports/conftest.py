"""What pytest does not collect here."""

# A program that http/test_server.py runs; importing it here would define its messages twice.
collect_ignore = ["http/site.py"]
