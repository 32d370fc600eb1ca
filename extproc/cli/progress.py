"""Progress: a bar on stderr for what takes seconds and can tell how far it is.

Never: anything on stdout, or where stderr is no terminal. Called by: cli.doctor, cli.conformance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

__all__ = ["shown"]


@contextlib.contextmanager
def shown(text: str) -> Iterator[Callable[[float], None]]:
    """Takes the share done [0..1]; the bar, called `text`, appears with the first one told."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    tasks: list[TaskID] = []

    def tell(share: float) -> None:
        if not tasks:
            bar.start()
            tasks.append(bar.add_task(text, total=1.0))
        bar.update(tasks[0], completed=share)

    try:
        yield tell
    finally:
        if tasks:
            bar.stop()
