"""Does a fork wait for a call that nobody has cancelled? The gate that a client closes before its process forks; no grpc."""

from __future__ import annotations

import threading

from client.fork import CutByFork, Gate
from tests.harness.threads import Task


def test_a_call_that_was_being_made_while_the_gate_closed_is_cancelled_too() -> None:
    # claim 4
    inside, closing = threading.Event(), threading.Event()
    calls: list[threading.Event] = []
    cancelled: list[bool] = []

    def cancel_all() -> None:
        for call in list(calls):
            call.set()
        closing.set()

    gate = Gate(suspend=cancel_all, resume=lambda: None)

    def call() -> None:
        with gate.using_grpc():
            inside.set()
            assert closing.wait(30)  # everything that could be cancelled has been, and this call is made only now
            made = threading.Event()
            calls.append(made)
            cancelled.append(made.wait(10))
            raise ConnectionError("cancelled")

    caller = Task(call)
    assert inside.wait(30)
    Task(gate.close).result()
    caller.error(CutByFork)
    assert cancelled == [True]
    late = Task(lambda: gate.using_grpc().__enter__())
    assert late.running  # nobody is let in before the fork is over
    gate.open()
    late.result()


def test_a_fork_in_the_middle_of_a_call_of_the_same_thread_does_not_wait_for_it() -> None:
    """A signal handler that forks interrupts its own thread: that call cannot end before the handler does."""
    gate = Gate(suspend=lambda: None, resume=lambda: None)
    with gate.using_grpc():
        gate.close()
        gate.open()
