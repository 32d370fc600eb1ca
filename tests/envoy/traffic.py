"""Traffic: a mixture of everything clients and replicas do to a request, to see what is left after it."""

from __future__ import annotations

import asyncio
import io
import itertools
import random
from collections import Counter

import aiohttp

from tests.envoy import client
from tests.envoy import fleet as fleets

GOES_WRONG = (
    aiohttp.ClientError,
    TimeoutError,
    OSError,
    asyncio.IncompleteReadError,
)  # what a client may see of a fault that was asked for


_PATIENCE_S = 1.5


class Traffic:
    """`await Traffic(running, http, seed).send(2000)`; `outcomes` counts (kind, what came of it)."""

    def __init__(self, running: fleets.Fleet, http: aiohttp.ClientSession, seed: int) -> None:
        self.outcomes: Counter[tuple[str, object]] = Counter()
        self._running, self._http = running, http
        self._rng = random.Random(seed)
        self._kinds = {
            "chat": self._chat,
            "stream": self._stream,
            "completion": self._completion,
            "get": self._get,
            "bad body": self._bad_body,
            "chunked": self._chunked,
            "replica fails": self._replica_fails,
            "impatient": self._impatient,
            "gone in upload": self._gone_in_upload,
            "gone in answer": self._gone_in_answer,
        }

    async def send(self, requests: int, concurrency: int = 48) -> None:
        """Every kind in turn, in random order, that many of them open at a time."""
        kinds = list(itertools.islice(itertools.cycle(self._kinds), requests))
        self._rng.shuffle(kinds)
        waiting = iter(kinds)

        async def one_client() -> None:
            for kind in waiting:
                try:
                    async with asyncio.timeout(_PATIENCE_S):  # some replicas never answer
                        outcome: object = await self._kinds[kind]()
                except GOES_WRONG as error:
                    outcome = type(error).__name__
                self.outcomes[kind, outcome] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(one_client())

    def statuses(self, kind: str) -> set[object]:
        return {outcome for each, outcome in self.outcomes if each == kind}

    # ---- kinds ----

    async def _chat(self) -> int:
        return await self._post(self._prompt())

    async def _stream(self) -> int:
        return await self._post(self._prompt(stream=True, max_tokens=10))

    async def _completion(self) -> int:
        body = b'{"prompt": "%d once upon a time", "max_tokens": 3}' % self._rng.randrange(50)
        return await self._post(body, path="/v1/completions")

    async def _get(self) -> int:
        async with self._http.get(f"{self._running.url}/v1/models") as answer:
            await answer.read()
            return answer.status

    async def _bad_body(self) -> int:
        body = self._prompt()
        return await self._post(body[: self._rng.randrange(1, len(body) - 1)])

    async def _chunked(self) -> int:
        body = self._prompt()

        async def pieces():
            for start in range(0, len(body), 600):
                yield body[start : start + 600]
                await asyncio.sleep(0)

        return await self._post(pieces())

    async def _replica_fails(self) -> int:
        fault = self._rng.choice(["reset", "503", "429", "500"])
        return await self._post(self._prompt(), headers={"x-sim-fault": fault})

    async def _impatient(self) -> int:
        """Gives up after a while, wherever the request is by then."""
        async with asyncio.timeout(self._rng.uniform(0.0, 0.3)):
            return await self._post(self._prompt(stream=self._rng.random() < 0.5, max_tokens=200))

    async def _gone_in_upload(self) -> str:
        body = self._prompt()
        async with client.raw(self._running) as raw:
            await raw.head(content_length=len(body))
            await raw.send(body[: self._rng.randrange(len(body))])
            await asyncio.sleep(self._rng.uniform(0, 0.05))
            raw.abort()
        return "gone"

    async def _gone_in_answer(self) -> str:
        body = self._prompt(stream=True, max_tokens=500)
        async with client.raw(self._running) as raw:
            await raw.head(content_length=len(body))
            await raw.send(body)
            await raw.reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(self._rng.uniform(0, 0.1))
            raw.abort()
        return "gone"

    # ---- how ----

    def _prompt(self, **fields: object) -> bytes:
        text = f"conversation {self._rng.randrange(200)} " * self._rng.choice([5, 50, 200])
        return client.chat_body(text, **fields)

    async def _post(self, body, *, path: str = "/v1/chat/completions", headers: dict | None = None) -> int:
        data = io.BytesIO(body) if isinstance(body, bytes) else body
        headers = {"content-type": "application/json"} | (headers or {})
        async with self._http.post(self._running.url + path, data=data, headers=headers) as answer:
            await answer.read()
            return answer.status
