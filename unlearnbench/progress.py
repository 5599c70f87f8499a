"""The progress display: what runs, how far it is, and the time left; plain lines when the output is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from unlearnbench.executors import Event


class Progress:
    """Shows `executors.Event`s. The time left is estimated from earlier stages of the same kind, on this machine."""

    def __init__(self, console: Console, kinds: dict[str, str], history: Callable[[str], list[float]]):
        self.console, self.kinds = console, kinds
        self.seconds: dict[str, list[float]] = {kind: history(kind) for kind in set(kinds.values())}
        self.left = dict(kinds)
        self.started: dict[str, float] = {}
        self.live = console.is_terminal
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not self.live,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Progress:
        if self.kinds:
            self.bars.start()
            self.tasks[""] = self.bars.add_task("stages", total=len(self.kinds), note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def show(self, event: Event) -> None:
        """One event."""
        if event.kind == "started":
            self.started[event.name] = time.monotonic()
            self.tasks[event.name] = self.bars.add_task(event.name, total=None, note="")
        elif event.kind == "progress":
            if event.name in self.tasks:
                self.bars.update(self.tasks[event.name], completed=event.done, total=event.total)
        else:
            self._ended(event)
        self.bars.update(self.tasks[""], note=self._remaining())

    def _ended(self, event: Event) -> None:
        self.left.pop(event.name, None)
        if event.name in self.tasks:
            self.bars.remove_task(self.tasks.pop(event.name))
        self.bars.advance(self.tasks[""])
        spent = time.monotonic() - self.started.get(event.name, time.monotonic())
        if event.kind == "finished":
            self.seconds.setdefault(self.kinds[event.name], []).append(spent)
            if not self.live:
                self.console.print(f"{spent:6.1f} s  {event.name}", markup=False, highlight=False)
        else:
            self.console.print(
                f"{event.kind} {event.name}: {event.error}", style="red", markup=False, highlight=False, soft_wrap=True
            )

    def _remaining(self) -> str:
        known = [s for seconds in self.seconds.values() for s in seconds]
        if not known or not self.left:
            return ""
        typical = {kind: sum(s) / len(s) if s else sum(known) / len(known) for kind, s in self.seconds.items()}
        now = time.monotonic()
        total = 0.0
        for name, kind in self.left.items():
            spent = now - self.started[name] if name in self.started else 0.0
            rest = max(0.0, typical[kind] - spent)
            total += rest if kind == "unlearn" else rest / 2  # timed stages run alone, others two at a time
        return f"about {total:.0f} s left"
