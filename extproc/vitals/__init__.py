"""Vitals: what one endpoint's readings mean over time.

Whether it restarted or lost its cache, whether it refuses work that its health check says it takes, whether
it holds what we think it holds, and how fast and how densely it reads prompts. Readings in, findings out; who
acts on them is the shell.

Never: a rule that one odd reading can trip for good: every estimate is bounded and comes back by itself.
Called by: endpoints.fleet. What each rule is worth: docs/fleet.md.
"""

from extproc.vitals.learned import Learned
from extproc.vitals.refusals import Refusals
from extproc.vitals.restarts import Restarts, fell
from extproc.vitals.truth import Truth

__all__ = ["Learned", "Refusals", "Restarts", "Truth", "fell"]
