"""What pytest does not collect in this folder."""

import sys
from pathlib import Path

# pytest's importlib mode does not let test modules import their neighbours.
sys.path.append(str(Path(__file__).parent))

# A program that the tests of the HTTP transport start. Importing it here as well would define its
# messages twice.
collect_ignore = ["http/site.py"]
