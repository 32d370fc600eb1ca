"""Workload: the seeded requests of the first article's users, the same for every arm.

Each user asks in a closed loop: think U(0.5, 2) s, send one chat request, read its 100 output tokens,
think again. A request is one of 5 shared prefixes of U(2000, 8000) tokens (the system message) and a
question of its own (the user message). The prefixes are drawn one from each fifth of that range: five free
draws would make a seed easy or hard by their sum, which decides how much fits into a cache. The article
gives the question sizes as classes only: 10 % small, 20 % medium, 30 % large, 40 % xlarge. Read here as 32,
64, 128, 256 tokens, so that the shared part is 0.89 (longest question on the shortest prefix) to 0.996 of a
prompt, 0.97 on average: its ".9 shared" case.

Text is made of three-letter words: a word and its blank are 4 bytes, 1 token of a simulated replica.

Invariant: user u's k-th request depends on (seed, u, k) alone, never on time, arm or other users.
Called by: driver, demo. Source: the client of the first article as described in docs/benchmarks.md.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["MODEL", "OUTPUT_TOKENS", "QUESTION_TOKENS", "Request", "Workload"]

MODEL = "codellama-13b"
OUTPUT_TOKENS = 100
PREFIX_COUNT = 5
PREFIX_TOKENS = (2000, 8000)
THINK_S = (0.5, 2.0)
# class -> (tokens of the question, share of requests)
QUESTION_TOKENS = {"small": (32, 0.1), "medium": (64, 0.2), "large": (128, 0.3), "xlarge": (256, 0.4)}

_WORDS = (  # noqa: SIM905 - a literal list of 245 strings would be four screens
    "act add age ago aid aim air all and any arc are arm art ask ban bar bat bay bed bet bid big bit bow box "
    "boy bug bus but buy can cap car cat cod cow cry cup cut dam day den dew did dig dim dip dog dot dry due "
    "dug ear eat ebb egg elm end era eve eye fan far fat few fig fit fix fly fog for fox fun fur gap gas get "
    "gum had ham hat hay hen her hid him hip his hit hop hot how hub hue hut ice ill ink inn ion ivy jam jar "
    "jet job joy jug key kid kit lab lag lap law lay led leg let lid lie lip log lot low mad map may men met "
    "mix mob mud mug nap net new nod nor not now nut oak oar odd off oil old one opt our out owl own pad pan "
    "pat paw pay pea pen pet pie pin pit pod pop pot put ram ran rat raw ray red rib rid rim rip rod row rub "
    "rug run rye sad sap sat saw say sea see set she shy sit six ski sky son sum sun tab tag tan tap tar tax "
    "tea ten the tie tin tip toe ton too top toy try tub two use van vat vet via vow wag war was wax way web "
    "wet who why wig win won yes yet you zip zoo"
).split()


@dataclass(frozen=True, slots=True)
class Request:
    """One request of one user.

    `think_s`: pause before it is sent [engine seconds]. `prefix`: which shared prefix, from 0. `size`:
    class of its question. `body`: the HTTP body, OpenAI chat completions, streaming with usage.
    """

    user: int
    turn: int
    think_s: float
    prefix: int
    size: str
    body: bytes


class Workload:
    """Every request of `user_count` users, as seeded streams."""

    def __init__(self, seed: int, user_count: int, *, prefix_count: int = PREFIX_COUNT) -> None:
        """`seed`: any integer. `user_count`, `prefix_count`: >= 1, else ValueError."""
        if user_count < 1 or prefix_count < 1:
            raise ValueError(f"user_count {user_count} and prefix_count {prefix_count} must be >= 1")
        self.seed = seed
        self.user_count = user_count
        rng = random.Random(f"{seed}/prefixes")
        self.prefix_tokens = _prefix_tokens(rng, prefix_count)
        # A prefix is up to 32 KB and sent thousands of times: encoded once.
        self._heads = tuple(_head(_text(rng, tokens)) for tokens in self.prefix_tokens)

    def requests(self, user: int) -> Iterator[Request]:
        """The endless requests of `user` (0 <= user < user_count, else ValueError), in order."""
        if not 0 <= user < self.user_count:
            raise ValueError(f"user {user} is not one of {self.user_count}")
        return self._requests(user)

    def _requests(self, user: int) -> Iterator[Request]:
        # A stream per user: a shared generator would make requests depend on who finishes first,
        # and so on the arm.
        rng = random.Random(f"{self.seed}/user/{user}")
        sizes = list(QUESTION_TOKENS)
        shares = [share for _, share in QUESTION_TOKENS.values()]
        turn = 0
        while True:
            prefix = rng.randrange(len(self._heads))
            size = rng.choices(sizes, shares)[0]
            question = _text(rng, QUESTION_TOKENS[size][0])
            yield Request(
                user=user,
                turn=turn,
                think_s=rng.uniform(*THINK_S),
                prefix=prefix,
                size=size,
                body=self._heads[prefix] + _tail(question),
            )
            turn += 1


def _prefix_tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    """Lengths, each U(low, high) by itself, together spread over the range, in no order."""
    low, high = PREFIX_TOKENS
    step = (high - low) / count
    lengths = [round(low + step * (stratum + rng.random())) for stratum in range(count)]
    rng.shuffle(lengths)
    return tuple(lengths)


def _text(rng: random.Random, tokens: int) -> str:
    """Words of `tokens` tokens; the last word's blank is a full stop, so the length is exact."""
    return " ".join(rng.choices(_WORDS, k=tokens)) + "."


def _head(prefix: str) -> bytes:
    """The body up to the question; `_tail` completes it."""
    system = json.dumps({"role": "system", "content": prefix})
    return f'{{"model":{json.dumps(MODEL)},"messages":[{system},'.encode()


def _tail(question: str) -> bytes:
    return (
        f'{{"role":"user","content":{json.dumps(question)}}}],"max_tokens":{OUTPUT_TOKENS},'
        '"stream":true,"stream_options":{"include_usage":true}}'
    ).encode()
