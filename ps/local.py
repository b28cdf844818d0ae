"""How can a whole cluster live in one process, for lessons, tests and notebooks?

The same servers as the daemons', on free loopback ports, on one event loop in one background thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from protos.errors import ClusterError
from ps.configuration import Configuration, consistency_of
from ps.membership import Membership
from ps.rules import make_rule
from ps.server import Server, Settings
from ps.story import Event
from ps.threads import usable_cpus


class LocalCluster:
    """`servers` ps for `workers` workers; `.cluster` is the dict that `client.connect` takes.

    The ps live until the block ends, also when every worker has left, so that clients can come and go.
    mode, slack, backup_workers, rule: as for ps-server; left out, the first init says. record: a name for `ps.replay`.

        with LocalCluster(servers=2, mode="sync", workers=2) as local:
            server = client.connect(local.cluster, worker=0)
    """

    def __init__(
        self,
        servers: int = 1,
        mode: str = "",
        workers: int = 1,
        *,
        slack: int | None = None,
        backup_workers: int | None = None,
        rule: str | Mapping[str, Any] = "",
        guard_nonfinite: bool = False,
        lease_s: float = 10.0,
        run_id: str = "",
        story_dir: str | Path | None = None,
        record: str | Path | None = None,
        shared_memory: bool = True,
        apply_threads: int | None = None,
    ) -> None:
        spec = make_rule(rule).spec() if rule else ""
        unbound = tuple(f"127.0.0.1:{index + 1}" for index in range(servers))
        self._settings = Settings(
            index=0,
            ps_addresses=unbound,
            num_workers=workers,
            run_id=run_id,
            bind="127.0.0.1:0",
            configuration=Configuration(mode, slack, backup_workers, spec),
            guard_nonfinite=guard_nonfinite,
            lease_s=lease_s,
            story_dir=Path(story_dir) if story_dir is not None else None,
            record=Path(record) if record is not None else None,
            shared_memory=shared_memory,
            apply_threads=apply_threads or usable_cpus(),
            exit_when_done=False,
        )
        if servers < 1 or workers < 0:
            raise ClusterError(
                field="LocalCluster", got=f"{servers} servers, {workers} workers", expected="a server at least"
            )
        if mode:
            consistency_of(self._settings.configuration, Membership(workers))  # what cannot be is refused here
        self._cluster: dict[str, list[str]] = {}
        self._servers: list[Server] = []
        self._runs: list[asyncio.Future[str]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="local-cluster", daemon=True)

    def __repr__(self) -> str:
        state = f"serving on {', '.join(self._cluster['ps'])}" if self._cluster else "not started"
        return f"LocalCluster({state}, {self._settings.configuration})"

    @property
    def cluster(self) -> dict[str, list[str]]:
        """The description that `client.connect` takes; only within the `with` block."""
        if not self._cluster:
            raise ClusterError(
                field="LocalCluster.cluster",
                got="a cluster that is not started",
                expected="with LocalCluster(…) as local: …",
            )
        return self._cluster

    def __enter__(self) -> LocalCluster:
        self._thread.start()
        try:
            ports = self._call(self._start())
        except BaseException:
            self._end_loop()
            raise
        # Workers do not listen; their addresses only have to differ from all others.
        workers = [f"worker-{index}.local:1" for index in range(self._settings.num_workers)]
        self._cluster = {"ps": [f"127.0.0.1:{port}" for port in ports], "worker": workers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop("the local cluster was closed")
        self._end_loop()

    def stop(self, reason: str) -> None:
        """Stop every ps now, for this reason; those who wait are told."""
        self._call(self._stop(reason))

    def stories(self) -> list[list[Event]]:
        """The story of each shard so far."""
        return [list(server.shard.story.events) for server in self._servers]

    async def _start(self) -> list[int]:
        count = len(self._settings.ps_addresses)
        self._servers = [Server(replace(self._settings, index=index)) for index in range(count)]
        ports = [await server.start() for server in self._servers]
        for server in self._servers:
            server.ps_addresses[:] = [f"127.0.0.1:{port}" for port in ports]
        self._runs = [asyncio.ensure_future(server.run()) for server in self._servers]
        return ports

    async def _stop(self, reason: str) -> None:
        for server in self._servers:
            server.stop(reason)
        await asyncio.gather(*self._runs)
        if rest := asyncio.all_tasks() - {asyncio.current_task()}:  # calls that are over may have a last turn to take
            await asyncio.wait(rest, timeout=1.0)

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
