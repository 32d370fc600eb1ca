"""Where prompts go, through Envoy: conversations stay, strangers spread, and a home outlives the process.

Policy `ring` on an idle pool is asked where homes are compared: its choice is the home, nothing else.
"""

import asyncio
import json
import random
from collections import Counter

import pytest

from tests.envoy import account, client

ENDPOINTS = 8
SYSTEM = {"role": "system", "content": "You are a patient assistant of a large company. " * 90}
KEYS = [f"user {number} has a question of his own, about {number * 7}. " * 30 for number in range(64)]


async def _homes(running, prompts=KEYS):
    """Endpoint name by prompt, one request at a time."""
    names = {each.address: each.name for each in running.endpoints}
    found = {}
    for prompt in prompts:
        answer = await running.chat(prompt)
        assert answer.status == 200
        found[prompt] = names[answer.served_by]
    return found


class Conversation:
    """A chat that grows: `served` and `cached` per turn."""

    def __init__(self, name, *, system=SYSTEM, words=120):
        self.name, self.served, self.cached = name, [], []
        self._messages, self._words = [system], words

    async def turn(self, running, **fields):
        question = f"{self.name} asks question {len(self.served)} " * self._words
        self._messages.append({"role": "user", "content": question})
        answer = await running.chat("", messages=self._messages, max_tokens=20, **fields)
        assert answer.status == 200
        said = json.loads(answer.body)["choices"][0]["message"]["content"]
        self._messages.append({"role": "assistant", "content": said})
        self.served.append(answer.served_by)
        self.cached.append(answer.cached_tokens)


# ---- affinity ----


@pytest.mark.parametrize("policy", ["cost", "ring"])
async def test_the_turns_of_a_conversation_land_on_one_replica_and_find_ever_more_there(fleet, policy):
    async with fleet(replicas=ENDPOINTS, policy=policy) as running:
        await _homes(running, KEYS[:20])  # some history, so that the conversation is not all of it
        chat = Conversation("Ada")
        for _ in range(4):
            await chat.turn(running)
        assert len(set(chat.served)) == 1
        assert chat.cached[0] == 0
        assert all(
            later > earlier + 500 for earlier, later in zip(chat.cached, chat.cached[1:], strict=False)
        )


async def test_round_robin_scatters_the_same_turns(fleet):
    """So the test above can fail."""
    async with fleet(replicas=ENDPOINTS, policy="round_robin") as running:
        chat = Conversation("Ada")
        for _ in range(4):
            await chat.turn(running)
        assert len(set(chat.served)) == 4
        assert max(chat.cached) == 0


@pytest.mark.parametrize("policy", ["cost", "ring"])
async def test_conversations_that_share_a_system_prompt_spread_and_stay(fleet, policy):
    async with fleet(replicas=ENDPOINTS, policy=policy, speed=2) as running:
        chats = [Conversation(f"user {number}", words=50) for number in range(40)]

        async def talk(chat):
            for _ in range(3):
                await chat.turn(running)

        await asyncio.gather(*[talk(chat) for chat in chats])
        served = Counter(address for chat in chats for address in chat.served)
        assert len(served) == ENDPOINTS
        assert max(served.values()) < 3 * 120 / ENDPOINTS
        stayed = sum(len(set(chat.served[1:])) == 1 for chat in chats)
        assert stayed >= {"ring": 36, "cost": 20}[policy]  # by chance: 5
        # most of a later turn is found: nearly all of it, or at least the system prompt
        assert all(cached > 1000 for chat in chats for cached in chat.cached[1:])
        await account.settled(running)


# ---- homes ----


async def test_restarted_reseeded_and_shuffled_processes_choose_the_same_homes(fleet, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    async with fleet(replicas=ENDPOINTS, policy="ring") as running:
        first = await _homes(running)
        shares = Counter(first.values())
        assert len(shares) == ENDPOINTS  # else the comparison says little
        assert max(shares.values()) < 2.5 * len(KEYS) / ENDPOINTS

        await running.kill_kvring()
        await running.start_kvring()
        await _steering(running)
        again = await _homes(running, KEYS[::-1])  # from the first request, in any order
        assert again == first

        await running.stop_kvring()
        monkeypatch.setenv("PYTHONHASHSEED", "4242")
        random.Random(5).shuffle(running.endpoints)
        await running.start_kvring()
        await _steering(running)
        assert await _homes(running) == first


async def test_two_processes_side_by_side_choose_the_same_homes(fleet, monkeypatch):
    async with fleet(replicas=ENDPOINTS, policy="ring") as one:
        monkeypatch.setenv("PYTHONHASHSEED", "77")
        async with fleet(replicas=ENDPOINTS, policy="ring") as other:
            # other replicas and addresses; the names are the same, and names are the ring's keys
            assert not set(one.addresses) & set(other.addresses)
            assert await _homes(one, KEYS[:40]) == await _homes(other, KEYS[:40][::-1])


async def test_homes_of_prompts_with_a_shared_start_survive_a_restart_too(fleet):
    prompts = [SYSTEM["content"] + key for key in KEYS[:40]]
    async with fleet(replicas=ENDPOINTS, policy="ring") as running:
        await _homes(running, prompts)
        settled = await _homes(running, prompts)
        assert len(set(settled.values())) == ENDPOINTS
        await running.kill_kvring()
        await running.start_kvring()
        await _steering(running)
        after = await _homes(running, prompts)
        # what everybody shares is learned again from the first few prompts
        assert sum(after[prompt] == settled[prompt] for prompt in prompts) >= 35
        assert {after[prompt] == settled[prompt] for prompt in prompts[10:]} == {True}


async def test_an_endpoint_removed_moves_only_its_own_keys(fleet):
    async with fleet(replicas=ENDPOINTS, policy="ring") as running:
        before = await _homes(running)
        biggest = Counter(before.values()).most_common(1)[0][0]  # else too few keys move to say much
        [gone] = [each for each in running.endpoints if each.name == biggest]
        running.endpoints.remove(gone)
        await running.stop_kvring()
        await running.start_kvring()
        await _steering(running)
        without = await _homes(running)
        moved = {key for key in KEYS if without[key] != before[key]}
        assert moved == {key for key in KEYS if before[key] == gone.name}
        assert len({without[key] for key in moved}) > 2  # not all to one neighbour


async def _steering(running):
    """Returns when Envoy asks kvring again, by requests that leave nothing behind in it."""

    async def asked():
        before = await running.metric("kvring_streams_total")
        for _ in range(3):
            async with running.http.get(f"{running.url}/v1/models") as answer:
                assert answer.status == 200
        return await running.metric("kvring_streams_total") >= before + 3

    await client.until(asked, "Envoy asks kvring")
