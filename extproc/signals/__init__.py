"""Signals: what an engine's `/metrics` and `/v1/models` say, as values; and what that means over time.

Every value has an age: whoever uses a `Reading` knows when it was asked for, and drops it when it is old.
Pure: text in, values out. Never: an exception, whatever the text is.
Called by: router and vitals (read), scrape (makes).
"""

from extproc.signals.board import Board
from extproc.signals.engines import NAMES, Engine
from extproc.signals.models import read_models
from extproc.signals.reading import Reader, Reading, quantile
from extproc.signals.signal import Signal, SignalAge

__all__ = ["NAMES", "Board", "Engine", "Reader", "Reading", "Signal", "SignalAge", "quantile", "read_models"]
