"""Workloads: loads to simulate, one file a family; `WORKLOADS` names every one.

A workload is a function that makes a scenario with its own servers: `make(load, name=value, ...)`. Written as
text, its parameters follow its name: "first:prefixes=20,shared=.7". Called by: cli.simulate, tests.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType

from extproc.sim import scenario
from extproc.sim.workloads import agents, chat, coding, documents, first_article, hot, rag, tenants, tides

__all__ = ["WORKLOADS", "make", "parameters", "summary"]

WORKLOADS: Mapping[str, Callable[..., scenario.Scenario]] = MappingProxyType(
    {
        "first": first_article.make,
        "documents": documents.make,
        "coding": coding.make,
        "hot": hot.make,
        "chat": chat.make,
        "rag": rag.make,
        "agents": agents.make,
        "tenants": tenants.make,
        "burst": tides.burst,
        "ramp": tides.ramp,
        "scale-up": tides.scale_up,
        "failure": tides.failure,
    }
)


def make(text: str, load: float = 1.0) -> scenario.Scenario:
    """The scenario of "NAME" or "NAME:parameter=value,...", `load` [> 0] times as busy.

    Errors: ValueError naming what is unknown or bad, and what there is.
    """
    name, _, rest = text.partition(":")
    if name not in WORKLOADS:
        raise ValueError(f"workload {name}: unknown, there are {', '.join(WORKLOADS)}")
    known = parameters(name)
    given: dict[str, object] = {}
    for word in filter(None, rest.split(",")):
        key, _, value = word.partition("=")
        if key not in known:
            raise ValueError(f"workload {name}: no parameter {key}, there are {', '.join(known)}")
        given[key] = _value(known[key], value, f"{name}:{key}")
    return WORKLOADS[name](load, **given)


def parameters(name: str) -> dict[str, object]:
    """The parameters of a workload with their defaults."""
    signature = inspect.signature(WORKLOADS[name]).parameters
    return {key: one.default for key, one in signature.items() if one.kind is one.KEYWORD_ONLY}


def summary(name: str) -> str:
    """One line about a workload."""
    function = WORKLOADS[name]
    text = function.__doc__ if function.__name__ != "make" else sys.modules[function.__module__].__doc__
    return (text or "").strip().splitlines()[0]


def _value(default: object, text: str, where: str) -> object:
    try:
        match default:
            case bool():
                return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
            case int():
                return int(text)
            case float():
                return float(text)
            case _:
                return text
    except (ValueError, KeyError):
        raise ValueError(f"{where}: {text!r} is no {type(default).__name__}") from None
