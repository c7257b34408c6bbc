"""What pytest does not collect in this folder."""

# A program that the tests of the HTTP transport start. Importing it here as well would define its
# messages twice.
collect_ignore = ["http/site.py"]
