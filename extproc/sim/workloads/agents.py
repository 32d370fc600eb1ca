"""Agents with groups of sub-agents: each step of an agent forks some that share its context.

An agent has one of `kinds` tool sets (6,000 tokens) and a task; each of its steps forks `group` sub-agents,
which continue its transcript with a task of their own for three turns. All carry the agent's session id, so
that a session key alone sends a whole group to one endpoint. Called by: workloads.
"""

from __future__ import annotations

import random

from extproc.sim import client, content, performance, scenario

__all__ = ["make"]

_TOOLS_TOKENS = 6000
_STEPS = 4
_SUB_TURNS = 3


def make(
    load: float = 1.0, *, agents: int = 16, group: int = 5, kinds: int = 4, endpoints: int = 8
) -> scenario.Scenario:
    """The load with `agents` * `load` agents, each forking `group` sub-agents a step."""
    count = max(round(agents * load), 1)

    def starts(seed: int) -> client.Starts:
        for agent in range(count):
            yield client.Start(agent * 0.5 / load, _agent(seed, agent, agent % kinds, group))

    return scenario.Scenario(
        name="agents",
        summary=f"{count} agents, {group} sub-agents a step",
        starts=starts,
        models=(performance.PRESETS["32b-fp8-h100"],) * endpoints,
        duration_s=300.0,
        warmup_s=60.0,
    )


def _agent(seed: int, agent: int, kind: int, group: int) -> client.Script:
    rng = random.Random(f"{seed}/agent/{agent}")
    tools = content.piece(seed, "tools", kind)
    run = 0
    while True:
        name = f"agent {agent} run {run}"
        task = content.piece(seed, name, "task")
        talk = content.Content.of([(tools, _TOOLS_TOKENS), (task, rng.randint(200, 2000))])
        for step in range(_STEPS):
            answer, output = content.piece(seed, name, "plan", step), rng.randint(100, 300)
            yield client.Ask(talk, output, name, answer, name, "", _TOOLS_TOKENS, tools, task)
            talk = talk.then(answer, output)
            subs = tuple(_sub(seed, name, step, sub, talk, tools) for sub in range(group))
            yield client.Fork(subs)
            talk = talk.then(content.piece(seed, name, "found", step), 400 * group)
        yield client.Pause(rng.uniform(1, 5))
        run += 1


def _sub(seed: int, name: str, step: int, sub: int, talk: content.Content, tools: int) -> client.Script:
    mine = f"{name} step {step} sub {sub}"
    rng = random.Random(f"{seed}/{mine}")
    talk = talk.then(content.piece(seed, mine, "task"), rng.randint(100, 500))
    user = content.piece(seed, name, "task")
    for turn in range(_SUB_TURNS):
        answer, output = content.piece(seed, mine, "answer", turn), rng.randint(50, 200)
        yield client.Ask(talk, output, name, answer, name, "", _TOOLS_TOKENS, tools, user)
        talk = talk.then(answer, output).then(content.piece(seed, mine, "tool", turn), rng.randint(200, 1500))
        yield client.Pause(rng.uniform(0.2, 2.0))
