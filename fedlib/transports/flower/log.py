"""What Flower's log shows of an error that ends a run."""

from __future__ import annotations

import logging

from fedlib.core.protocol import TooFewClients
from fedlib.core.texts import printable


class OneLineErrors(logging.Filter):
    """Replaces the traceback of an error that the user can repair by its text."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten the record; return True, since every record is shown."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ValueError | TooFewClients):
            text = f"{record.getMessage()}: {printable(str(error))}"
            record.msg, record.args, record.exc_info = "%s", (text,), None
        return True


def show_errors_in_one_line() -> None:
    """Let Flower's log show a mistake in the configuration of a run as one line.

    This holds for every ValueError, such as an unknown parameter of a protocol, and for
    `TooFewClients`. Other errors keep their traceback.

    Examples
    --------
    >>> show_errors_in_one_line()
    """
    logger = logging.getLogger("flwr")
    if not any(isinstance(known, OneLineErrors) for known in logger.filters):
        logger.addFilter(OneLineErrors())
