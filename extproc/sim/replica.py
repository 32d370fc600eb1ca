"""Replica: a simulated vLLM server, an engine model behind vLLM's HTTP interface.

A client or router sees the routes, JSON, events, status codes, timing and metrics of vLLM 0.32; the text is
made up. Response headers leave at once, long before the first token. Each request writes the tokens that are
due in one piece.

Invariant: a request's slot is given back however its handler ends; a disconnect cancels the handler.
Called by: cli, demo, tests; many replicas may share one event loop. Source: vLLM 0.32's HTTP server.
"""

from __future__ import annotations

import asyncio
import hashlib
import http
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import msgspec
from aiohttp import typedefs, web

from extproc import __version__
from extproc.sim import answer, call, delivery, exposition, messages, pacer, reply
from extproc.sim import engine as engines

if TYPE_CHECKING:
    from types import TracebackType

    from extproc.sim import performance

__all__ = ["Replica", "Settings", "stop_listening"]

_BODY_BYTES_MAX = 64 * 2**20
_STOP_TIMEOUT_S = 0.1


@dataclass(frozen=True, slots=True)
class Settings:
    """How a replica is served.

    `name`: value of the `x-replica` response header. `port`: 0 for any free one. `speed`: engine seconds per
    real second [> 0]. `faults_allowed`: obey `x-sim-fault` and echo what was received, for tests.
    """

    name: str = "replica-0"
    model: str = "codellama-13b"
    adapters: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 0
    speed: float = 1.0
    faults_allowed: bool = False


async def stop_listening(listener: asyncio.Server) -> None:
    """Take no more connections, with nobody left waiting on one that had just arrived.

    A server that closes between a connection's arrival and its protocol leaves it open and silent, to
    nobody's knowledge (Python 3.11): so first none is taken any more, and those taken get theirs.
    """
    for door in listener.sockets:
        asyncio.get_running_loop().remove_reader(door)
    await asyncio.sleep(0)
    listener.close()


class Replica:
    """One server. `async with Replica(performance, settings) as replica: replica.address`."""

    def __init__(self, model: performance.Performance, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        if not 0 < self.settings.speed < math.inf:
            raise ValueError(f"speed is {self.settings.speed}, must be finite and > 0")
        self.engine = engines.Engine(model)
        self.served = call.Served(
            self.settings.model, model.blocks * model.block_tokens, self.settings.adapters
        )
        self._identity = exposition.Identity(self.settings.model, time.time())
        self._pacer: pacer.Pacer | None = None
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """Where it listens, as ip:port; empty before `start`."""
        return self._address

    async def start(self) -> None:
        """Listens. Errors: OSError if the port is taken.

        A second start is a restart: same address, all counters 0, nothing cached.
        """
        self.engine = engines.Engine(self.engine.model)
        self._identity = exposition.Identity(self.settings.model, time.time())
        self._pacer = pacer.Pacer(self.engine, self.settings.speed)
        self._runner = web.AppRunner(
            self._app(),
            access_log=None,
            handler_cancellation=True,  # a client that goes away must free its slot
            auto_decompress=False,  # vLLM reads bodies as they come
            shutdown_timeout=_STOP_TIMEOUT_S,
        )
        await self._runner.setup()
        port = int(self._address.rpartition(":")[2]) if self._address else self.settings.port
        handler = self._runner.server
        if handler is None:
            raise RuntimeError("set up, and no server")
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(handler, self.settings.host, port, backlog=128)
        host, port = self._listener.sockets[0].getsockname()[:2]
        self._address = f"{host}:{port}"

    def pace(self, speed: float) -> None:
        """Serves at `speed`, engine seconds per real second [> 0], from now to the next `start`."""
        self._clock.pace(speed)

    async def stop(self) -> None:
        """Stops at once; open answers are cut off, as when a vLLM process ends."""
        if self._pacer is not None:
            self._pacer.stop()
        if self._listener is not None:
            await stop_listening(self._listener)
            self._listener = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._pacer is not None:
            self._pacer.stop()  # handlers that ended meanwhile have armed it again

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def _clock(self) -> pacer.Pacer:
        if self._pacer is None:
            raise RuntimeError("not started")
        return self._pacer

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=_BODY_BYTES_MAX, middlewares=[_errors])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completions),
                web.post("/v1/messages", self._messages),
                web.post("/v1/messages/count_tokens", self._count_tokens),
                web.post("/tokenize", self._tokenize),
                web.post("/reset_prefix_cache", self._reset_prefix_cache),
                web.get("/v1/models", self._models),
                web.get("/metrics", self._metrics),
                web.get("/version", self._version),
                web.get("/load", self._load),
                web.get("/health", self._health),
                web.route("*", "/ping", self._health),
            ]
        )
        app.on_response_prepare.append(self._sign)
        return app

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, call.Kind.CHAT)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, call.Kind.COMPLETION)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, call.Kind.MESSAGES)

    async def _answer(self, request: web.Request, kind: call.Kind) -> web.StreamResponse:
        raw = await request.read()
        fault = self._fault(request)
        if fault is not None:
            return fault
        asked = call.parse(kind, raw, self.served)
        words = [
            answer.words(prompt, asked.output_tokens, choice)
            for prompt in asked.prompts
            for choice in range(asked.choices)
        ]
        listener = self._clock.submit(asked, words)
        if listener is None:
            return await delivery.reject(request, asked)
        try:
            return await delivery.deliver(request, asked, words, listener)
        finally:
            self._clock.drop(listener)

    def _fault(self, request: web.Request) -> web.Response | None:
        """The failure a test asked for, before any work."""
        if not self.settings.faults_allowed:
            return None
        fault = request.headers.get("x-sim-fault", "")
        if fault == "reset":
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        if fault.isdigit() and 400 <= int(fault) <= 599:
            return _json(reply.error(int(fault), "SimulatedError", "failure on demand"), int(fault))
        return None

    async def _tokenize(self, request: web.Request) -> web.Response:
        tokens = call.tokenize(call.Kind.CHAT, await request.read(), self.served)
        fields = {
            "count": len(tokens),
            "max_model_len": self.served.context_tokens,
            "tokens": tokens,
            "token_strs": None,
        }
        return _json(msgspec.json.encode(fields))

    async def _count_tokens(self, request: web.Request) -> web.Response:
        tokens = call.tokenize(call.Kind.MESSAGES, await request.read(), self.served)
        return _json(msgspec.json.encode({"input_tokens": len(tokens)}))

    async def _reset_prefix_cache(self, _: web.Request) -> web.Response:
        self._clock.catch_up()
        return _json(msgspec.json.encode({"success": self.engine.reset_prefix_cache()}))

    async def _models(self, _: web.Request) -> web.Response:
        base = self.settings.model
        models: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": int(self._identity.started_at),
                "owned_by": "vllm",
                "root": name,
                "parent": None if name == base else base,
                "max_model_len": self.served.context_tokens if name == base else None,
                "permission": [],
            }
            for name in (base, *self.settings.adapters)
        ]
        return _json(msgspec.json.encode({"object": "list", "data": models}))

    async def _metrics(self, _: web.Request) -> web.Response:
        self._clock.catch_up()
        body = exposition.render(self.engine, self._identity)
        return web.Response(body=body, headers={"content-type": exposition.CONTENT_TYPE})

    async def _version(self, _: web.Request) -> web.Response:
        return _json(msgspec.json.encode({"version": f"0.32.0+kvring{__version__}"}))

    async def _load(self, _: web.Request) -> web.Response:
        self._clock.catch_up()
        return _json(msgspec.json.encode({"server_load": self.engine.running + self.engine.waiting}))

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _sign(self, request: web.Request, response: web.StreamResponse) -> None:
        """Adds who answered, and what it received where tests are allowed to ask."""
        response.headers["Server"] = "uvicorn"
        response.headers["x-replica"] = self.settings.name
        if self.settings.faults_allowed:
            received = request.headers
            # a body beyond the limit cannot be read, any other is read by now or short
            body = (
                b"" if response.status == http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE else await request.read()
            )
            response.headers["x-sim-body-sha256"] = hashlib.sha256(body).hexdigest()
            response.headers["x-sim-content-length"] = received.get("content-length", "")
            response.headers["x-sim-transfer-encoding"] = received.get("transfer-encoding", "")
            response.headers["x-sim-destination"] = received.get("x-gateway-destination-endpoint", "")


@web.middleware
async def _errors(request: web.Request, handler: typedefs.Handler) -> web.StreamResponse:
    """Turns what a handler raises into vLLM's error body."""
    try:
        return await handler(request)
    except call.CallError as error:
        if request.path.startswith("/v1/messages"):
            return _json(messages.error("invalid_request_error", error.message), error.status)
        return _json(reply.error(error.status, error.kind, error.message, error.param), error.status)
    except web.HTTPException as error:
        response = _json(reply.error(error.status, error.reason, error.reason), error.status)
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, headers={"content-type": "application/json"})
