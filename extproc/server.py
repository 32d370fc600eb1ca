"""Server: one coroutine an ext_proc stream; decodes, hands events to the exchange, performs its actions.

Fail open, at one line: the only `except Exception` on a request's way is in `_answer`. After it the exchange
has no opinion and lets everything pass, so that a fault here never fails a request. A message that can't be
parsed ends the stream without an answer, which Envoy takes as no opinion too.

Never: a lease that outlives its stream (one `finally`, which awaits nothing); a decision here.
Called by: app. Source: Envoy's ext_proc v3 API; gRPC health checking protocol v1.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as grpc_health

from extproc import choice, exchange, groups, metrics, pool, protocol, telling, wire

__all__ = ["BindError", "HealthServer", "Server", "Settings"]

_log = logging.getLogger("kvring")

_Context = grpc.aio.ServicerContext[Any, Any]


class BindError(OSError):
    """An address can't be listened on."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`listen`: "host:port" or "unix:/path", plaintext; `tls_listen`: the same, for TLS, None for no such
    port; the rest as in the configuration.
    """

    listen: str
    message_bytes_max: int
    streams_max: int
    pick_header: bool
    tls_listen: str | None = None


def _ignore(_pool: str, _endpoint: pool.Endpoint, _answered_well: bool) -> None:  # noqa: FBT001
    """Nobody wants to know."""


def _alone() -> None:
    """There is nobody to tell."""


class Server:
    """The ext_proc gRPC server of all pools."""

    def __init__(
        self,
        settings: Settings,
        pools: groups.Groups | groups.Chooser,
        exchange_settings: exchange.Settings,
        counted: metrics.Metrics,
        clock: Callable[[], float],
        chance: Callable[[], float],
        answered: Callable[[str, pool.Endpoint, bool], None] = _ignore,
        teller: telling.Teller | None = None,
        changed: Callable[[], None] | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """Bind; the address in use is in `address`, that of the TLS port in `tls_address`.

        Args: pools: or who decides for the only one; clock: monotonic [s]; chance: uniform in [0, 1);
            answered: told of every answer seen: pool, endpoint, whether it was no fault of the engine.
            teller: told of every decision; None: it is only counted.
            changed: called after whatever may have changed the ledger; credentials: of the TLS port.
        Raises: BindError.
        """
        self._settings = settings
        self._groups = pools if isinstance(pools, groups.Groups) else groups.alone(pools)
        self._answered = answered
        self._teller = teller or telling.Teller(counted)
        self._changed = changed or _alone
        self._exchange_settings = exchange_settings
        self._metrics = counted
        self._clock = clock
        self._chance = chance
        self._open: dict[asyncio.Task[Any], exchange.Exchange] = {}
        self._closing = False
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", settings.message_bytes_max),
                ("grpc.max_send_message_length", settings.message_bytes_max),
                # An Envoy that vanished without a word ends no stream: ask, or its leases stay open.
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.so_reuseport", 0),  # a second process on the port is a mistake: say so
                # gRPC itself would refuse some streams of a burst, uncounted, from 1,000 not begun on
                ("grpc.server.max_pending_requests", settings.streams_max),
                ("grpc.server.max_pending_requests_hard_limit", settings.streams_max),
            ]
        )
        method: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
            self._process, None, wire.serialize
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: method}),)
        )
        self.address = _bind(self._server, settings.listen)
        self.tls_address: str | None = None
        if settings.tls_listen is not None:
            self.tls_address = _bind(self._server, settings.tls_listen, credentials)

    @property
    def streams_open(self) -> int:
        """Streams open now."""
        return len(self._open)

    async def start(self) -> None:
        """Serve."""
        await self._server.start()

    async def stop(self, timeout_s: float) -> None:
        """Take no more streams, end those that can end, wait up to `timeout_s` [s] for the others.

        Ending a stream whose choice was sent is no loss to its request, only to our count of it.
        """
        self._closing = True
        for task, opened in list(self._open.items()):
            if opened.can_end_early:
                task.cancel()
        await self._server.stop(timeout_s)

    async def _process(self, _requests: object, context: _Context) -> None:
        if len(self._open) >= self._settings.streams_max:
            self._metrics.streams_limit.inc()
            self._metrics.limited(choice.Limit.STREAMS)
            return
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a stream is served by a task")
        opened = exchange.Exchange(self._groups, self._exchange_settings)
        self._open[task] = opened
        self._metrics.streams_open.inc()
        began_s = opened.began_s = self._clock()
        if self._teller.traces:
            opened.parents = _parents(context)
        stream = _Stream(self, context, opened)
        try:
            await stream.run()
        except asyncio.CancelledError:
            if not self._closing:  # Envoy reset the stream: the request is over
                raise
        finally:
            opened.close()
            self._changed()
            stream.cancel_timer()
            if opened.usage is not None:
                self._metrics.used(opened.usage)
            del self._open[task]
            self._metrics.streams_open.dec()
            self._metrics.streams.inc()
            self._metrics.stream_s.observe(self._clock() - began_s)

    def _answer(self, opened: exchange.Exchange, event: protocol.Event | None) -> list[protocol.Action]:
        """The actions for `event`, or for the deadline where it is None, whatever happens."""
        before, answered = opened.result, opened.answered_well
        now = self._clock()
        try:
            chance = self._chance()
            actions = opened.expire(now, chance) if event is None else opened.receive(event, now, chance)
        except Exception:  # noqa: BLE001  (the one place: see the head)
            self._metrics.fault.inc()
            _log.exception("no opinion: a fault while choosing")
            return opened.give_up(event, now)
        if opened.result is not before:  # a deadline that comes too late chooses nothing
            self._tell(opened, now)
        self._note_answer(opened, event, answered=answered)
        self._changed()
        return actions

    def _note_answer(
        self, opened: exchange.Exchange, event: protocol.Event | None, *, answered: bool | None
    ) -> None:
        chosen = opened.result
        if not isinstance(chosen, choice.Choice):
            return
        if isinstance(event, protocol.ResponseHeaders) and event.served:
            self._metrics.served(chosen, opened.endpoint)
        well = opened.answered_well
        if well is not None and well is not answered and opened.endpoint is not None:
            self._answered(chosen.pool, opened.endpoint, well)

    def _tell(self, opened: exchange.Exchange, began_s: float) -> None:
        if opened.result is None:
            return
        now = self._clock()
        waited_s = now - opened.began_s
        parents = (*opened.parents, opened.traceparent) if self._teller.traces else ()
        self._teller.tell(telling.Decided(opened.result, opened.limit, now, now - began_s, waited_s, parents))


class _Stream:
    """Reading and writing of one gRPC stream."""

    def __init__(self, server: Server, context: _Context, opened: exchange.Exchange) -> None:
        self._server = server
        self._context = context
        self._exchange = opened
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s: float | None = None
        self._expiring: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Answer every message until Envoy ends the stream."""
        server = self._server
        while True:
            message = await self._context.read()
            if message is grpc.aio.EOF:
                return
            try:
                event = wire.decode(message)
            except DecodeError:
                server._metrics.malformed.inc()  # noqa: SLF001  (one unit, split for reading)
                return
            if event is None:
                continue
            if self._expiring is not None:
                await self._expiring  # its writes come first
            await self._write(server._answer(self._exchange, event))  # noqa: SLF001
            if self._exchange.is_over or (server._closing and self._exchange.can_end_early):  # noqa: SLF001
                return  # nothing more to learn; or chosen while draining: nobody else will end it
            self._set_timer()

    def cancel_timer(self) -> None:
        """Nothing more will be written."""
        if self._timer is not None:
            self._timer.cancel()
        if self._expiring is not None:
            self._expiring.cancel()

    async def _write(self, actions: list[protocol.Action]) -> None:
        for action in actions:
            for message in wire.messages(action, header=self._server._settings.pick_header):  # noqa: SLF001
                await self._context.write(message)

    def _set_timer(self) -> None:
        # A timer and not a timeout on read(): cancelling a read of grpc.aio would lose the stream.
        deadline_s = self._exchange.deadline_s
        if deadline_s == self._timer_at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at_s = deadline_s
        if deadline_s is not None:
            wait_s = max(0.0, deadline_s - self._server._clock())  # noqa: SLF001
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        actions = self._server._answer(self._exchange, None)  # noqa: SLF001
        self._expiring = asyncio.get_running_loop().create_task(self._write(actions))


class HealthServer:
    """gRPC health on a port of its own, plaintext: kubelet probes can't do TLS.

    `liveness` serves while the process lives; the others while it is ready for new streams.
    """

    _READY_NAMES = ("readiness", wire.SERVICE, "")

    def __init__(self, listen: str) -> None:
        """Bind; the address in use is in `address`. Raises: BindError."""
        self._servicer = grpc_health.HealthServicer()
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, self._server)
        self.address = _bind(self._server, listen)
        self.ready = False

    async def start(self) -> None:
        """Serve, alive and not ready."""
        await self._servicer.set("liveness", health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(ready=False)
        await self._server.start()

    async def set_ready(self, *, ready: bool) -> None:
        """Tell whether new streams are welcome."""
        self.ready = ready
        status = health_pb2.HealthCheckResponse
        for name in self._READY_NAMES:
            await self._servicer.set(name, status.SERVING if ready else status.NOT_SERVING)

    async def stop(self) -> None:
        """Stop at once."""
        await self._server.stop(0)


def _parents(context: _Context) -> tuple[str, ...]:
    """Trace context of the gRPC call: Envoy's own span of it, where Envoy traces."""
    metadata = context.invocation_metadata() or ()
    return tuple(str(value) for name, value in metadata if name == "traceparent")


def _bind(server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None = None) -> str:
    """The address really listened on. Raises: BindError."""
    try:
        if credentials is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise BindError(f"can't listen on {listen}: in use, or not an address of this machine") from error
    return listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"
