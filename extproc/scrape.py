"""Scrape: asks one engine what it does and which models it serves, again and again.

Every `interval_s` its metrics, every `models_interval_s` its `/v1/models`, over one connection, one question
at a time: an engine that takes 5 s to answer is asked every 5 s. Who does not answer is asked less and less
often, down to an eighth; what is not told makes nobody unready.

Never: a question while another is open; more than one reading kept. Called by: endpoints.fleet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from extproc import beat, config, fetch, signals

__all__ = ["Heard", "watch"]

_MODELS_PATH = "/v1/models"
_SILENCES_MAX = 3  # after which it is asked no less often


class Heard(Protocol):
    """Who is told what an engine says."""

    def asking(self) -> None:
        """Metrics are being asked for: what follows is as of now."""
        ...

    def reading(self, reading: signals.Reading) -> None:
        """The engine's metrics, as of the last `asking`."""
        ...

    def silent(self, problem: str, *, nobody: bool) -> None:
        """It did not tell its metrics; `nobody`: since nobody listens there."""
        ...

    def models(self, names: frozenset[str] | None) -> None:
        """The models it serves; None: it does not tell."""
        ...


async def watch(
    address: str,
    settings: config.Signals,
    heard: Heard,
    chance: Callable[[], float],
    *,
    ask_models: bool,
) -> None:
    """Ask `address` for ever. Args: ask_models: False where its models are configured."""
    connection = fetch.Connection(address)
    reader = signals.Reader()
    silences = 0
    models_due_s = 0.0 if ask_models and settings.models_interval_s else math.inf
    wait_s = settings.interval_s

    def interval_s() -> float:
        return wait_s

    try:
        async for now in beat.beats(interval_s, chance):
            if now >= models_due_s:  # first of all: a newcomer is not chosen before
                models_due_s = now + settings.models_interval_s
                heard.models(await _models(connection, settings))
            heard.asking()
            nobody = False
            try:
                answer = await connection.get(settings.path, settings.timeout_s)
                problem = "" if answer.status == 200 else f"status {answer.status}"
            except fetch.FetchError as error:
                problem, nobody = error.problem, error.nobody
            if problem:
                silences = min(silences + 1, _SILENCES_MAX)
                heard.silent(problem, nobody=nobody)
            else:
                silences = 0
                heard.reading(reader.read(answer.body))
            wait_s = settings.interval_s * 2**silences
    finally:
        connection.close()


async def _models(connection: fetch.Connection, settings: config.Signals) -> frozenset[str] | None:
    try:
        answer = await connection.get(_MODELS_PATH, settings.timeout_s)
    except fetch.FetchError:
        return None
    return signals.read_models(answer.body) if answer.status == 200 else None
