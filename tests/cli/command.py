"""One process of the command line: its arguments, folder and output are the global ``settings``.

The setting ``environment`` has further variables of the environment. With the setting ``dies``, the
process kills itself at a moment: ``(moment, number)`` is its ``number``-th moment of this kind,
counted from 0. With the setting ``installed``, the process becomes one of the installed command,
which has to import everything.
"""

import os
import signal
import sys
from pathlib import Path

from fedlib.cli.main import main


def die_at(wanted, number):
    """Wrap what the moments are: records of a journal, and the work of a client."""
    from fedlib.core.journal import Journal
    from fedlib.transports.http import client
    from fedlib.transports.http.checkpoint import Checkpoint

    client.RETRY, client.MAX_RETRY = 0.02, 0.1  # the tests start many processes
    left = [number]

    def moment(name):
        if name == wanted:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    append, save, answer = Journal._append, Checkpoint.save, client.ClientLoop.answer

    def append_and_die(journal, record, sync=False):
        append(journal, record, sync)
        moment("recorded")

    def save_and_die(checkpoint, folder):
        moment("handled")
        save(checkpoint, folder)
        moment("saved")

    def answer_and_die(loop, client, number, request):
        answer(loop, client, number, request)
        moment("answered")

    Journal._append, Checkpoint.save = append_and_die, save_and_die
    client.ClientLoop.answer = answer_and_die


if __name__ == "__main__":
    settings = globals()["settings"]
    os.chdir(settings["folder"])
    file = os.open(settings["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.environ.pop("FEDLIB_TOKEN", None)
    os.environ["FEDLIB_STATE"] = str(Path(settings["folder"], "state").absolute())
    os.environ.update(settings.get("environment", {}))
    if "dies" in settings:
        die_at(*settings["dies"])
    if "installed" in settings:
        program = str(Path(sys.executable).with_name("fedlib"))
        os.execv(program, [program, *settings["arguments"]])
    main(settings["arguments"])
