"""Case: all that is known of one fleet (the replicas of one model) before anything is concluded.

Made by: diagnosis. Called by: rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.doctor import figures, gain, stay, traffic
from extproc.signals import Engine

__all__ = ["Case"]


@dataclass(frozen=True, slots=True)
class Case:
    """`stays`: each replica's; `whole`: theirs together; `told`: figures of the whole. `routed`: requests go
    by prefix. `estimate`: None where none was asked for or made.
    """

    stays: tuple[stay.Stay, ...]
    whole: stay.Stay
    told: figures.Figures
    spread: figures.Spread
    load: traffic.Traffic | None
    routed: bool
    price: gain.Price
    estimate: gain.Estimate | None = None

    @property
    def replicas(self) -> int:
        """How many there are."""
        return len(self.stays)

    @property
    def sglang(self) -> bool:
        """Whether it is SGLang; its options differ from vLLM's."""
        return self.whole.engine is Engine.SGLANG

    def either(self, vllm: str, sglang: str) -> str:
        """The text that fits the engine."""
        return sglang if self.sglang else vllm
