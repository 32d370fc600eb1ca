"""Client: what users and programs do, as scripts.

A script is a generator. It yields one step at a time and is resumed when the step is over:

    answer = yield Ask(...)      send a request, wait for its last token
    yield Pause(seconds)         think, run a tool
    yield Fork((script, ...))    run scripts side by side, wait for all of them

So a closed loop is a script that asks for ever, an open loop is many scripts of one request each, and an
agent with sub-agents is a script that forks. A workload says when each script starts.

Law: a script takes chance only from a generator seeded by its own name, never from one shared with another
script, so that a faster policy sees the same requests, only sooner. Called by: workloads (write), simulation.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from extproc import router
from extproc.sim import content

__all__ = ["Answer", "Ask", "Fork", "Pause", "Script", "Start", "Step"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    `prompt`: its tokens. `output_tokens` [>= 1]: of the answer. `group`: requests of one group share a prefix
    worth keeping; affinity is measured within it, "" for none. `answer`: piece id of the output, 0 if no
    later prompt repeats it. The rest is what `chooser.Request` shows of the text. `read`: as the production
    reader read it, for prompts that come from a body. `patience_s` [s, > 0]: the client hangs up so long
    after it asked, wherever the answer stands; None for one that waits to the end.
    """

    prompt: content.Content
    output_tokens: int
    group: str = ""
    answer: int = 0
    session: str = ""
    adapter: str = ""
    system_tokens: int = 0
    system: int = 0
    user: int = 0
    read: router.Request | None = None
    patience_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing for `seconds` [>= 0]."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Fork:
    """Scripts run side by side; the step is over when all are."""

    scripts: tuple[Script, ...]


class Answer(NamedTuple):
    """How an `Ask` ended: `error` names the failure, None if all tokens came."""

    error: str | None = None


Step = Ask | Pause | Fork
Script = Generator[Step, Answer | None, None]


class Start(NamedTuple):
    """A script, and when it starts [s since the run began]."""

    at_s: float
    script: Script


Starts = Iterator[Start]
