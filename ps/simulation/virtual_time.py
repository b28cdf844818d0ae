"""How can a thousand workers live an hour in seconds, and the same hour every time? An event loop whose clock is a number.

When nothing is ready, time jumps to the next timer. What is due at one moment happens one after the other, in the order it
was asked for: a timer is let off only when everything that the one before has set going is at rest. Work for a thread is
done at once, on the loop. So a run has no chance in it but what its coroutines bring along.

It must not know shards or workers. Next: ps/simulation/run.py, which lives on it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from protos.errors import InternalError

T = TypeVar("T")


class VirtualLoop(asyncio.AbstractEventLoop):
    """An asyncio event loop for coroutines that wait for each other and for time, and for nothing else.

    time() is in virtual seconds from 0. No sockets, signals, threads or subprocesses: what asks for them gets
    NotImplementedError.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()
        self._cancelled_timers = 0
        self._running = False

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; what it raises is raised here. Tasks that it leaves behind are cancelled."""
        self._running = True
        around = asyncio._get_running_loop()  # a notebook's own loop calls what a cell calls
        asyncio._set_running_loop(self)
        try:
            task: asyncio.Task[T] = self.create_task(main)
            try:
                self._until(task.done)
            finally:
                rest = asyncio.all_tasks(self)
                for each in rest:
                    each.cancel()
                self._until(lambda: all(each.done() for each in rest))
            return task.result()
        finally:
            asyncio._set_running_loop(around)
            self._running = False

    def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            if not self._ready:
                self._jump()
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()

    def _jump(self) -> None:
        """To the next timer, and let it off."""
        while self._timers:
            when_s, _, timer = heapq.heappop(self._timers)
            if timer.cancelled():
                self._cancelled_timers -= 1
                continue
            self._now_s = max(self._now_s, when_s)
            self._ready.append(timer)
            return
        raise InternalError(
            field="virtual time",
            got="coroutines that all wait, and no timer",
            expected="something that can happen",
            hint="Every wait needs a deadline.",
        )

    # -- what asyncio asks of a loop ---------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Deadlines that were met would fill the heap."""
        self._cancelled_timers += 1
        if self._cancelled_timers > 100 + len(self._timers) // 2:
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, **options)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits it, as an executor does
            done.set_exception(error)
        return done

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody awaited: a bug of the simulation, and no run goes on with one."""
        exception = context.get("exception")
        if exception is not None and not isinstance(exception, Exception):
            return  # an interrupt, which is on its way to whoever runs this
        raise InternalError(
            field="virtual time", got=context.get("message", ""), expected="errors that somebody awaits"
        ) from exception

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False
