"""Log: one line of JSON an event on stderr; no prompt, no header value, no key ever.

Libraries log too, and quote what they were sent: aiohttp the bytes of a bad request, asyncio the text of an
exception. Of their records only the first line before formatting is written, and where an exception arose.

Called by: app (sets up). Everybody else uses `logging.getLogger("kvring")` with `extra` fields.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from types import TracebackType

__all__ = ["setup"]

_FRAMES_MAX = 32

_STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def setup(level: str) -> None:
    """Send the `kvring` logger to stderr from `level` ("debug" .. "error") on, others from "warning" on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logger = logging.getLogger("kvring")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        own = record.name == "kvring"
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage() if own else str(record.msg).partition("\n")[0],
        }
        if own:
            line |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        else:
            line["logger"] = record.name
        if record.exc_info and record.exc_info[1] is not None:
            # The traceback without the exception's text: that may quote a request.
            line["exception"] = type(record.exc_info[1]).__name__
            line["at"] = _where(record.exc_info[2])
        return json.dumps(line, default=str)


def _where(trace: TracebackType | None) -> list[str]:
    places: list[str] = []
    while trace is not None and len(places) < _FRAMES_MAX:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return places
