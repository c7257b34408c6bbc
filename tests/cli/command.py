"""One process of the command line: its arguments, folder and output are the global ``settings``."""

import os

from fedlib.cli.main import main

if __name__ == "__main__":
    settings = globals()["settings"]
    os.chdir(settings["folder"])
    file = os.open(settings["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.environ.pop("FEDLIB_TOKEN", None)
    main(settings["arguments"])
