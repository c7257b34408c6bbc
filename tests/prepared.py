"""The process from which the tests fork programs: it has imported fedlib and loaded its kernels.

A new process spends seconds on imports and on numba's cache before it does anything. A fork of this
process has both, and is like a new process otherwise: this one has started no thread, opened no
connection and kept no state. Tests of how programs start use the installed command instead.
"""

import gc
import os
import sys
import threading
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).with_name("cli")))

import httpcore  # noqa: F401, httpx imports it later
import numpy as np
import pandas.io.formats.csvs  # noqa: F401, also imported late

import fedlib.cli.join
import fedlib.cli.options
import fedlib.cli.serve
import fedlib.transports.http.client
import fedlib.transports.http.server  # noqa: F401

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import cli_helpers

    for name in cli_helpers.CASES:
        cli_helpers.fitted(name)
for thread in threading.enumerate():  # those that computed for the clients are ending
    if thread is not threading.main_thread():
        thread.join(60)
assert threading.active_count() == 1, threading.enumerate()
gc.collect()
os.register_at_fork(after_in_child=np.random.seed)  # a new process has another state, too
gc.freeze()  # collections in the forks then copy no memory
