"""The ways to a store: password, ACL user, TLS, Sentinel, Cluster; each over real servers of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import valkey.exceptions

from extproc.config import store as settings_
from extproc.share import link
from tests import certificates, ports, valkey_server, valve
from tests.functional.conftest import ROOT, Launch, eventually

store = pytest.importorskip("extproc.share.store", reason="needs the extra valkey")

RULES = re.compile(r"^ACL (SETUSER kvring on >SECRET .+)$", re.MULTILINE)


class Ends:
    """Two links, as two replicas have them, and what each heard of the other."""

    def __init__(self, *asked: settings_.Store) -> None:
        self.heard: list[set[bytes]] = [set() for _ in asked]
        self.chances = [0.0, 0.5]
        self.links = [
            store.StoreLink(one, lambda chance=chance: chance)
            for one, chance in zip(asked, self.chances, strict=True)
        ]
        self._numbers = itertools.count()

    @property
    def states(self) -> list[link.State]:
        return [one.state for one in self.links]

    async def talk(self) -> float:
        """How long [s] it takes until a message of each has come to the other."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        sent: list[set[bytes]] = [set(), set()]
        while not (sent[0] & self.heard[1] and sent[1] & self.heard[0]):
            assert clock() - began_s < 30, self.states
            for one, mine in zip(self.links, sent, strict=True):
                word = b"%d" % next(self._numbers)
                one.send(word)
                mine.add(word)
            await asyncio.sleep(0.05)  # as the view says something now and then
        return clock() - began_s

    async def silent(self, problem: str) -> None:
        """Return when both say that they can't, and why."""
        try:
            await eventually(lambda: all(one.problem == problem for one in self.states), 20)
        except AssertionError:
            raise AssertionError(f"{self.states}") from None


@contextlib.asynccontextmanager
async def ends(*asked: settings_.Store) -> AsyncIterator[Ends]:
    made = Ends(*(asked if len(asked) == 2 else asked * 2))
    running = [
        asyncio.create_task(one.run(heard.add, lambda: None))
        for one, heard in zip(made.links, made.heard, strict=True)
    ]
    try:
        yield made
        assert not any(one.done() for one in running)
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def secret(directory: Path, text: str) -> str:
    file = directory / "password"
    file.write_text(f"{text}\n")
    return str(file)


def documented_rules() -> list[list[str]]:
    """Words of the ACL rules that the page gives to copy: for the store, for Sentinels."""
    found = RULES.findall((ROOT / "docs/high-availability.md").read_text())
    assert len(found) == 2
    return [one.split() for one in found]


async def test_a_store_without_room_for_a_key_carries_messages_all_the_same(tmp_path: Path) -> None:
    async with valkey_server.running(tmp_path, more=("--maxmemory-policy", "noeviction")) as server:
        await server.ask("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(valkey.exceptions.OutOfMemoryError):
            await server.ask("SET", "a", "b")
        async with ends(settings_.Store(url=server.url)) as pair:
            await pair.talk()


async def test_a_store_that_takes_no_more_connections_is_tried_again(tmp_path: Path) -> None:
    async with valkey_server.running(tmp_path) as server:
        await server.ask("CONFIG", "SET", "maxclients", "1")
        async with ends(settings_.Store(url=server.url)) as pair:
            await eventually(lambda: all(one.problem for one in pair.states))
            while True:
                with contextlib.suppress(valkey.exceptions.ConnectionError):
                    await server.ask("CONFIG", "SET", "maxclients", "100")
                    break
            await pair.talk()


# ---- who may ----


async def test_a_password_from_a_file_is_read_at_every_connect(tmp_path: Path) -> None:
    async with valkey_server.running(tmp_path, more=("--requirepass", "first")) as server:
        asked = settings_.Store(url=server.url, password_file=secret(tmp_path, "first"), timeout_s=1.0)
        async with ends(asked) as pair:
            await pair.talk()
            secret(tmp_path, "second")
            await server.ask("CONFIG", "SET", "requirepass", "second", password="first")  # noqa: S106
            await server.ask("CLIENT", "KILL", "SKIPME", "yes", password="second")  # noqa: S106
            await pair.talk()
            assert all(one.connects >= 2 for one in pair.states)
            secret(tmp_path, "wrong")
            await server.ask("CLIENT", "KILL", "SKIPME", "yes", password="second")  # noqa: S106
            await pair.silent("WRONGPASS")


async def test_the_documented_acl_user_may_do_what_is_needed_and_nothing_is_denied(tmp_path: Path) -> None:
    async with valkey_server.running(tmp_path) as server:
        await server.ask("ACL", *documented_rules()[0])
        asked = settings_.Store(url=server.url, user="kvring", password_file=secret(tmp_path, "SECRET"))
        async with ends(asked) as pair:
            await pair.talk()
            assert {one.connects for one in pair.states} == {1}
        assert await server.ask("ACL", "LOG") == []


@pytest.mark.parametrize("right", ["+publish", "+subscribe", "+ping", "&kvring"])
async def test_each_right_of_the_documented_acl_user_is_needed(tmp_path: Path, right: str) -> None:
    async with valkey_server.running(tmp_path) as server:
        words = documented_rules()[0]
        words.remove(right)
        await server.ask("ACL", *words)
        asked = settings_.Store(url=server.url, user="kvring", password_file=secret(tmp_path, "SECRET"))
        async with ends(asked) as pair:

            async def poke() -> None:
                while True:
                    for one in pair.links:
                        one.send(b"x")
                    await asyncio.sleep(0.01)

            poking = asyncio.create_task(poke())
            await pair.silent("NOPERM")
            poking.cancel()
        assert not pair.heard[0] | pair.heard[1]


# ---- TLS ----


def spoken(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


async def test_tls_with_a_checked_name_and_a_client_certificate(tmp_path: Path) -> None:
    own = certificates.Authority("store").write(tmp_path, "store")
    shown = certificates.Authority("clients").write(tmp_path, "client")
    store_ca, client_ca = str(tmp_path / "store.ca"), str(tmp_path / "client.ca")
    client = {"cert_file": str(shown[0]), "key_file": str(shown[1])}
    async with (
        valkey_server.running(tmp_path) as server,
        valve.valve(server.socket, spoken(*own, client_ca=tmp_path / "client.ca")) as door,
    ):
        url = f"valkeys://localhost:{door.port}"
        async with ends(settings_.Store(url=url, ca_file=store_ca, **client)) as pair:
            await pair.talk()
        for bad in (
            settings_.Store(url=url, ca_file=store_ca),  # shows no certificate
            settings_.Store(url=url, ca_file=client_ca, **client),  # trusts others
            settings_.Store(url=f"valkeys://127.0.0.1:{door.port}", ca_file=store_ca, **client),  # other name
        ):
            async with ends(bad) as pair:
                await eventually(lambda states=pair.states: all(one.problem for one in states))
                assert not any(one.connects for one in pair.states)


async def test_tls_of_the_server_itself(tmp_path: Path) -> None:
    own = certificates.Authority("store").write(tmp_path, "store")
    port = ports.own()
    tls = ("--tls-port", str(port), "--tls-cert-file", str(own[0]), "--tls-key-file", str(own[1]))
    authority = ("--tls-ca-cert-file", str(tmp_path / "store.ca"), "--tls-auth-clients", "no")
    server = valkey_server.Server(tmp_path, more=(*tls, *authority))
    try:
        await server.start()
    except AssertionError:
        pytest.skip(f"{valkey_server.binary()} is built without TLS; VALKEY_SERVER may name another")
    try:
        url = f"valkeys://localhost:{port}"
        async with ends(settings_.Store(url=url, ca_file=str(tmp_path / "store.ca"))) as pair:
            await pair.talk()
    finally:
        await server.kill()


async def test_replicas_share_over_tls_as_an_acl_user(
    tmp_path: Path, sidecar: Launch, unused_address: str
) -> None:
    own = certificates.Authority("store").write(tmp_path, "store")
    async with (
        valkey_server.running(tmp_path) as server,
        valve.valve(server.socket, spoken(*own)) as door,
    ):
        await server.ask("ACL", *documented_rules()[0])
        settings: dict[str, Any] = {
            "url": f"rediss://localhost:{door.port}",
            "ca_file": str(tmp_path / "store.ca"),
            "user": "kvring",
            "password_file": secret(tmp_path, "SECRET"),
        }
        running = [await sidecar({"a": unused_address}, store=settings) for _ in range(2)]
        for one in running:

            async def heard(one: Any = one) -> bool:
                return "kvring_sharing_peers 1.0" in (await one.get("/metrics"))[1]

            await eventually(heard, 20)


# ---- Sentinel ----


@contextlib.asynccontextmanager
async def sentinels(
    directory: Path, primary: valkey_server.Server, count: int = 3
) -> AsyncIterator[list[valkey_server.Server]]:
    """Sentinels that watch `primary` as "fleet" and agree within a second that it is gone."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for number in range(count):
            (directory / f"sentinel-{number}.conf").write_text(
                f"sentinel monitor fleet 127.0.0.1 {primary.port} {count // 2 + 1}\n"
                "sentinel down-after-milliseconds fleet 500\n"
                "sentinel failover-timeout fleet 2000\n"
            )
            server = valkey_server.Server(
                directory,
                f"sentinel-{number}",
                port=ports.own(),
                file=directory / f"sentinel-{number}.conf",
                more=("--sentinel",),
            )
            await server.start()
            stack.push_async_callback(server.kill)
            await server.ask("ACL", *documented_rules()[1])
            found.append(server)
        yield found


@pytest.mark.parametrize("how", ["killed", "replaced while it lives"])
async def test_sentinels_move_the_link_to_the_new_primary(tmp_path: Path, how: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = []
        for number in range(2):
            more = ("--replicaof", f"127.0.0.1 {servers[0].port}") if servers else ()
            options = {"port": ports.own(), "more": ("--repl-diskless-sync-delay", "0", *more)}
            servers.append(
                await stack.enter_async_context(valkey_server.running(tmp_path, f"data-{number}", **options))
            )
        watching = await stack.enter_async_context(sentinels(tmp_path, servers[0]))

        async def known() -> bool:
            told = [await one.ask("SENTINEL", "MASTER", "fleet") for one in watching]
            fields = [dict(zip(one[::2], one[1::2], strict=True)) for one in told]
            return all(one["num-slaves"] == "1" and one["num-other-sentinels"] == "2" for one in fields)

        async with asyncio.timeout(20):
            while not await known():
                await asyncio.sleep(0.1)
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in watching)
        asked = settings_.Store(
            url=f"valkey://{hosts}",
            sentinel="fleet",
            sentinel_user="kvring",
            sentinel_password_file=secret(tmp_path, "SECRET"),
            timeout_s=0.5,
        )
        pair = await stack.enter_async_context(ends(asked))
        await pair.talk()
        assert await connected(servers) == [2, 0]  # both at the primary
        if how == "killed":
            await servers[0].kill()
            await watching[0].kill()  # the first to be asked
            servers = servers[1:]
        else:
            await watching[1].ask("SENTINEL", "FAILOVER", "fleet")
        clock = asyncio.get_running_loop().time
        began_s = clock()
        async with asyncio.timeout(30):
            while (await connected(servers))[-1] != 2:
                await pair.talk()
        took_s = clock() - began_s
        print(f"primary {how}: {took_s:.1f} s")  # noqa: T201
        assert took_s < 8 or how == "killed"  # Sentinels make the old one a replica after 10
        await pair.talk()

        async def nobody_behind() -> bool:
            return sum(await connected(servers)) == 2

        await eventually(nobody_behind, 5)  # at the old one, once it has seen them go
        at_sentinel = await watching[1].ask("CLIENT", "LIST")
        assert str(at_sentinel).count("user=kvring") <= 2 * len(pair.links)  # each asks over one or two


async def test_a_sentinel_is_asked_over_tls_as_its_own_user(tmp_path: Path) -> None:
    own = certificates.Authority("store").write(tmp_path, "store")
    certificates.Authority("others").write(tmp_path, "other")
    async with (
        valkey_server.running(tmp_path, "data", port=ports.own()) as primary,
        sentinels(tmp_path, primary, count=1) as watching,
        valve.valve(watching[0].socket, spoken(*own)) as door,
    ):
        asked = {
            "url": f"valkeys://localhost:{door.port}",
            "sentinel": "fleet",
            "sentinel_user": "kvring",
            "sentinel_password_file": secret(tmp_path, "SECRET"),
        }
        trusting = store.StoreLink(settings_.Store(**asked, ca_file=str(tmp_path / "store.ca")), lambda: 0.0)
        assert await trusting._find() == ("127.0.0.1", primary.port)
        wary = store.StoreLink(settings_.Store(**asked, ca_file=str(tmp_path / "other.ca")), lambda: 0.0)
        with pytest.raises(ssl.SSLCertVerificationError):
            await wary._find()


async def test_behind_sentinels_with_tls_the_server_is_reached_over_tls_too(tmp_path: Path) -> None:
    """A real Sentinel can't name a server whose TLS is a valve's: it would have to ask it in plaintext."""
    own = certificates.Authority("store").write(tmp_path, "store")
    async with (
        valkey_server.running(tmp_path) as server,
        valve.valve(server.socket, spoken(*own)) as door,
        valkey_server.naming(b"localhost", b"%d" % door.port, spoken(*own)) as (port, questions),
    ):
        url, authority = f"valkeys://localhost:{port}", str(tmp_path / "store.ca")
        async with ends(settings_.Store(url=url, sentinel="main", ca_file=authority)) as pair:
            await pair.talk()
        assert questions.qsize() >= 2


async def connected(servers: list[valkey_server.Server]) -> list[int]:
    """Links that are subscribed at each server."""
    return [(await one.ask("PUBSUB", "NUMSUB", "kvring"))[1] for one in servers]


# ---- Cluster ----


async def test_links_at_different_nodes_of_a_cluster_hear_each_other_and_leave_a_dead_one(
    tmp_path: Path,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        nodes = []
        for number in range(3):
            directory = tmp_path / str(number)
            directory.mkdir()
            more = ("--cluster-enabled", "yes", "--cluster-port", str(ports.own()))
            options = {"port": ports.own(), "more": (*more, "--cluster-node-timeout", "1000")}
            nodes.append(await stack.enter_async_context(valkey_server.running(directory, **options)))
        for number, one in enumerate(nodes):
            first, last = 5461 * number, (5460, 10921, 16383)[number]
            await one.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
            if number:
                bus = nodes[0].more[3]
                await one.ask("CLUSTER", "MEET", "127.0.0.1", str(nodes[0].port), bus)
        async with asyncio.timeout(30):
            while not all(["cluster_state:ok" in await one.ask("CLUSTER", "INFO") for one in nodes]):
                await asyncio.sleep(0.05)
        url = "valkey://" + ",".join(f"127.0.0.1:{one.port}" for one in nodes)
        pair = await stack.enter_async_context(ends(settings_.Store(url=url, timeout_s=0.5)))
        await pair.talk()
        assert sorted(await connected(nodes)) == [0, 1, 1]
        await nodes[0].kill()  # a third of the slots is nobody's now, which is nothing to a channel
        await pair.talk()
        assert sum(await connected(nodes[1:])) == 2
