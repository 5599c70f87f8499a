"""Where stages run: worker processes of this machine, each with its own threads; timed stages run alone.

Workers come from a fork server that has imported torch once, so a worker starts in milliseconds, and a crash of a cell
takes its worker down and nothing else. Workers end when the parent does, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from typing import Any

PRELOAD = "unlearnbench.stages"  #: what the fork server imports before it forks


@dataclass(frozen=True)
class Job:
    """One piece of work: a picklable function and arguments, the names of the jobs it waits for, and whether it is
    timed.
    """

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    after: tuple[str, ...] = ()
    timed: bool = False
    rank: int = 0  #: jobs of a lower rank start first


@dataclass
class Event:
    """Something that happened: `started`, `progress` (with `done` of `total`), `finished` (with `result`), `failed`,
    `blocked`.
    """

    kind: str
    name: str
    result: Any = None
    error: str = ""
    trace: str = ""
    cause: BaseException | None = None
    done: int = 0
    total: int = 0


def _context() -> Any:
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([PRELOAD])
    return context


def start_early() -> None:
    """Let the fork server import what workers need while this process goes on; it ends with this process."""
    if _context().get_start_method() == "forkserver":
        from multiprocessing import forkserver

        forkserver.ensure_running()


@dataclass
class _Pool:
    """A process pool that is made anew when a worker dies."""

    workers: int
    plugins: tuple[str, ...]
    queue: Any = None
    executor: ProcessPoolExecutor | None = None
    context: Any = field(default=None)

    def submit(self, job: Job) -> Future[Any]:
        if self.executor is None:
            self.context = _context()
            self.queue = self.context.SimpleQueue()
            self.executor = ProcessPoolExecutor(
                self.workers, mp_context=self.context, initializer=_start_worker, initargs=(self.queue, self.plugins)
            )
        return self.executor.submit(_work, job.name, job.call, job.arguments)

    def close(self) -> None:
        if self.executor is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)
            self.executor = None


def run_jobs(
    jobs: Sequence[Job], workers: int = 2, plugins: Sequence[str] = (), lost: Iterable[str] = ()
) -> Iterator[Event]:
    """Run jobs in order of their rank, as their dependencies allow; yield what happens. `lost`: jobs that failed
    before.

    A timed job starts when nothing else runs, and nothing starts while it runs. When a job fails, the jobs that wait
    for it are reported `blocked` and everything else goes on.
    """
    waiting = {job.name: job for job in sorted(jobs, key=lambda job: job.rank)}
    done: set[str] = set()
    lost = set(lost)
    retried: set[str] = set()
    running: dict[Future[Any], Job] = {}
    pool = _Pool(workers, tuple(plugins))
    try:
        while waiting or running:
            for job in list(waiting.values()):
                broken = [name for name in job.after if name in lost]
                if broken:
                    lost.add(job.name)
                    del waiting[job.name]
                    yield Event("blocked", job.name, error=f"{broken[0]} failed")
            for job in _startable(waiting, done, running, workers):
                del waiting[job.name]
                running[pool.submit(job)] = job
                yield Event("started", job.name)
            if not running:
                continue
            finished, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
            while pool.queue is not None and not pool.queue.empty():
                name, count, total = pool.queue.get()
                yield Event("progress", name, done=count, total=total)
            for future in finished:
                job = running.pop(future)
                if isinstance(future.exception(), BrokenProcessPool):
                    pool.close()  # all that ran is lost with it: try each once more, alone, to find the culprit
                    if job.name not in retried:
                        retried.add(job.name)
                        waiting = {job.name: replace(job, timed=True), **waiting}
                        continue
                event = _outcome(job, future)
                (done if event.kind == "finished" else lost).add(job.name)
                yield event
    finally:
        pool.close()


def _startable(waiting: dict[str, Job], done: set[str], running: dict[Future[Any], Job], workers: int) -> list[Job]:
    if any(job.timed for job in running.values()):
        return []
    ready = [job for job in waiting.values() if all(name in done for name in job.after)]
    if not ready:
        return []
    first = ready[0]
    if first.timed:
        return [] if running else [first]
    free = workers - len(running)
    chosen: list[Job] = []
    for job in ready:
        if job.timed or len(chosen) >= free:
            break
        chosen.append(job)
    return chosen


def _outcome(job: Job, future: Future[Any]) -> Event:
    error = future.exception()
    if error is None:
        return Event("finished", job.name, result=future.result())
    if isinstance(error, BrokenProcessPool):
        return Event("failed", job.name, error="the worker process died (out of memory, or killed)", cause=error)
    trace = "".join(traceback.format_exception(error))
    return Event("failed", job.name, error=f"{type(error).__name__}: {error}", trace=trace, cause=error)


_queue: Any = None
_job: str = ""


def _start_worker(queue: Any, plugins: tuple[str, ...]) -> None:
    global _queue
    _queue = queue
    parent = multiprocessing.parent_process()
    if parent is not None:
        sentinel = parent.sentinel

        def end_with_parent() -> None:
            connection.wait([sentinel])
            os._exit(1)

        threading.Thread(target=end_with_parent, daemon=True).start()
    from unlearnbench.registry import load_plugin

    for path in plugins:
        load_plugin(path)


def _work(name: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    global _job
    _job = name
    return call(*arguments)


def report_progress(done: int, total: int) -> None:
    """From inside a job: say how far it is."""
    if _queue is not None:
        _queue.put((_job, done, total))
