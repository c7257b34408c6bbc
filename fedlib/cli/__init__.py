"""The command line.

The rules:

- The commands know no protocol. The options of a protocol come from its estimator's signature,
  parameter constraints and docstring, the other options of a site from the clients' signatures.
  So a new estimator can be served and joined as soon as it is imported.
- Files, columns and options are checked before the first call.
- Progress and errors are single lines on standard error.
- Exit status 0: done. 1: failed, and one line gives the reason. 2: the command was wrong. 130:
  interrupted.
- `fedlib.cli.main` imports no command; each has a module that is imported when the command is used.
"""
