"""A progress bar for the tasks of one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import distributed
from distributed import Future
from distributed.utils import is_kernel
from tqdm import tqdm


class Progress:
    """A progress bar: that of ``distributed`` in a notebook, that of tqdm elsewhere.

    Parameters
    ----------
    title : str or None
        None for no progress bar.
    futures : sequence of Future
    """

    def __init__(self, title: str | None, futures: Sequence[Future]):
        self._futures = futures
        self._bar: Any = None
        if title is not None and is_kernel():
            distributed.progress(list(futures))
        elif title is not None:
            self._bar = tqdm(total=len(futures), desc=title, unit="partition")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self.update()
            self._bar.close()

    def update(self) -> None:
        """Count the tasks that have ended."""
        if self._bar is not None:
            self._bar.update(sum(future.done() for future in self._futures) - self._bar.n)
