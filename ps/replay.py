"""Make a recorded run again, in one process: the same updates in the same order, the same weights bit for bit.

The core does it (aggregation, apply), fed from the record instead of from the network, one ps after the other. Used as
`python -m ps.replay FILE`, or `replay(FILE)` from a notebook, for looking at a run after it is over: stop at any version,
look at the values, change a rule and see what it would have made of the same gradients.

Next: ps/record.py (what was written down), ps/updates.py (the live counterpart).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from protos.codec import Array
from protos.errors import InvalidInput, ParameterServerError
from ps.aggregation import Contribution
from ps.apply import Exchange, with_slots
from ps.read_states import ReadStates
from ps.record import Entry, contribution_of, entries, key_of, path_of, source_digest, values_of
from ps.rules import UpdateRule, load_rules, make_rule
from ps.step import stepping
from ps.story import Event
from ps.variable import Paged, Partition, ShardState


@dataclass
class Replayed:
    """A model as it was at some version. values: whole arrays by name. version: one number per ps."""

    values: dict[str, Array]
    version: tuple[int, ...]
    rule: str

    def digest(self) -> str:
        """SHA-256 over names, dtypes, shapes and bytes: two models with the same digest are the same to the last bit."""
        total = hashlib.sha256()
        for name, value in sorted(self.values.items()):
            total.update(f"{name} {value.dtype.name} {value.shape}\n".encode())
            total.update(np.ascontiguousarray(value).tobytes())
        return total.hexdigest()


def replay(record: str | Path, *, until: int | None = None, rule: str | Mapping[str, Any] | None = None) -> Replayed:
    """The model after the run, or at version `until` of every ps, from the files NAME.psN of a record.

    record: NAME, or the path of one of these files; all of them are read.
    rule: another one than the run had, to see what it makes of the same gradients. InvalidInput for what is no record, or
    one that does not fit together, and for another rule that needs a sum over several ps which the run has not made.
    """
    record = _name_of(Path(record))
    num_ps = _num_ps(path_of(record, 0))
    shards = [_Shard(_existing(path_of(record, index)), num_ps, rule) for index in range(num_ps)]
    for shard in shards:
        shard.run(until)
    states = [shard.state for shard in shards if shard.state is not None]
    if len(states) < num_ps:
        raise InvalidInput(field=f"record {record}", got="a ps that was not initialised", expected="a run with a model")
    whole = dict(_whole_values([partition for state in states for partition in state.partitions]))
    return Replayed(whole, tuple(state.version for state in states), shards[0].rule.spec() if shards[0].rule else "")


def _name_of(path: Path) -> Path:
    """NAME, from the path of one of the files NAME.psN."""
    return path.with_name(re.sub(r"\.ps\d+$", "", path.name)) if path.is_file() else path


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise InvalidInput(
            field="record", got=f"no file {path}", expected="the files NAME.ps0, NAME.ps1, … that --record NAME wrote"
        )
    return path


def _num_ps(path: Path) -> int:
    number = next(entries(_existing(path)), Entry()).get("num_ps")
    if not isinstance(number, int) or number < 1:
        raise InvalidInput(field=f"record {path}", got="no number of ps", expected="a header that says it")
    return number


@dataclass
class _Shard:
    """One ps, replayed."""

    path: Path
    num_ps: int
    other_rule: str | Mapping[str, Any] | None
    state: ShardState | None = None
    rule: UpdateRule | None = None
    mode: str = ""
    _rule_of_the_run: bool = True
    _gradients: dict[tuple[int, int, int], tuple[str, Entry]] = field(default_factory=dict)
    _sums: list[Array] = field(default_factory=list)
    _values: Entry | None = None
    _read: ReadStates = field(default_factory=ReadStates)

    def run(self, until: int | None) -> None:
        for entry in entries(self.path):
            if until is not None and self.state is not None and self.state.version >= until:
                return
            if "partitions" in entry:
                self._init(entry)
            elif "gradient" in entry:
                self._sums.clear()  # those of a step that failed after them: it took new gradients to make it again
                worker, generation, sequence = entry["gradient"]
                self._gradients[worker, generation, sequence] = entry["session"], entry
            elif "values" in entry:
                self._values = entry
            elif "sums" in entry:
                self._sums.append(entry.arrays[0][1])
            elif "read" in entry:
                self._read.remember(entry["read"], self._present())
            elif "event" in entry:
                self._happened(Event.from_json(json.dumps(entry["event"])))

    def _init(self, entry: Entry) -> None:
        said = entry["configuration"]["rule"]
        spec = self.other_rule or said
        self.rule = make_rule(spec) if spec else None
        self._rule_of_the_run = self.other_rule is None or self.rule == make_rule(said)
        made_by = entry.get("rule_source", "")
        if self.other_rule is None and made_by and source_digest(self.rule) not in ("", made_by):
            raise InvalidInput(
                field=f"record {self.path}",
                got=f"a rule {self.rule.name if self.rule else ''} whose code has changed since",
                expected="the code of the run",
                hint=f"--rule {spec} replays with the code as it is now.",
            )
        self.mode = entry["configuration"]["mode"]
        partitions = [
            Partition(key_of(key), Paged.of(array)) for key, (_, array) in zip(entry["partitions"], entry.arrays)
        ]
        if self.rule is not None:
            partitions = [with_slots(partition, self.rule) for partition in partitions]
        self.state = ShardState(0, tuple(partitions))

    def _happened(self, event: Event) -> None:
        if event.kind == "step":
            contributions = {worker: self._take((worker, *rest))[1] for worker, *rest in event.contributors}
            self._update(event, contributions, worker=None, read=self.state)
        elif event.kind == "push" and event.outcome == "applied" and self.mode != "sync":
            assert event.worker is not None and event.at_version is not None
            session, contribution = self._take((event.worker, event.generation, event.sequence))
            read = None
            if self.rule is not None and self.rule.needs_read_value:
                read = self._read.of(session, event.at_version, self._present(), self.rule)
            self._update(event, {event.worker: contribution}, worker=event.worker, read=read)
        elif event.kind == "assign":
            state = self._present()
            if self._values is not None:
                self.state = state.with_values(values_of(self._values, state.partitions))
            self._values = None

    def _take(self, key: tuple[Any, ...]) -> tuple[str, Contribution]:
        if key not in self._gradients:
            raise InvalidInput(field=f"record {self.path}", got=f"no gradient {key}", expected="one before its event")
        session, entry = self._gradients.pop(key)
        return session, contribution_of(entry, self._present().partitions)

    def _update(
        self, event: Event, contributions: dict[int, Contribution], worker: int | None, read: ShardState | None
    ) -> None:
        staleness = event.staleness or 0
        self.state = self._driven(
            stepping(self._present(), self.rule, contributions, staleness=staleness, worker=worker, read_state=read)
        )
        if self.state.version != event.version:
            raise InvalidInput(
                field=f"record {self.path}", got=f"version {self.state.version}", expected=f"{event.version}, as it was"
            )

    def _driven(self, exchange: Exchange[ShardState]) -> ShardState:
        """Sums over the model are those the run had; where there was one ps, this shard's own."""
        recorded, self._sums = iter(self._sums if self._rule_of_the_run else ()), []
        try:
            parts = next(exchange)
            while True:
                sums = next(recorded, parts if self.num_ps == 1 else None)
                if sums is None:
                    raise InvalidInput(
                        field=f"rule {self.rule.name if self.rule else ''}",
                        got="a sum over all ps, and each ps is replayed apart",
                        expected="the rule of the run, a rule that needs none, or a record of one ps",
                    )
                parts = exchange.send(sums)
        except StopIteration as done:
            state: ShardState = done.value
            return state

    def _present(self) -> ShardState:
        if self.state is None:
            raise InvalidInput(field=f"record {self.path}", got="no first values", expected="an init first")
        return self.state


def _whole_values(partitions: list[Partition]) -> Iterator[tuple[str, Array]]:
    by_name: dict[str, list[tuple[int, int, Array]]] = {}
    for key, value in itertools.chain.from_iterable(partition.parts() for partition in partitions):
        by_name.setdefault(key.name, []).append((key.start, key.stop, value))
    for name, parts in sorted(by_name.items()):
        arrays = [array for *_, array in sorted(parts, key=lambda part: part[:2])]
        yield name, arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="\b\nExample:\n  ps-run -n 2 -s 2 --record run.record -- ps-worker model.py\n"
    "  python -m ps.replay run.record --out weights.npz",
)
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--until", type=click.IntRange(0), help="Stop at this version. Default: the end of the run.")
@click.option("--rule", help="Another update rule than the run had: what would it have made of the same gradients?")
@click.option("--rules", type=click.Path(path_type=Path), help="Python file that registers rules of your own.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the values there, as .npz.")
@click.option("--json", "as_json", is_flag=True, help="Print for machines.")
def main(
    record: Path, until: int | None, rule: str | None, rules: Path | None, out: Path | None, as_json: bool
) -> None:
    """Replay RECORD, the name that --record was given, and show the model it ends with."""
    if out is not None and out.suffix != ".npz":
        out = Path(f"{out}.npz")
    try:
        if out is not None and not out.parent.is_dir():
            raise InvalidInput(field="--out", got=f"no directory {out.parent}", expected="a file in one that is there")
        if rules is not None:
            load_rules(rules)
        replayed = replay(record, until=until, rule=rule)
        if out is not None:
            np.savez(out, allow_pickle=False, **replayed.values)
    except (ParameterServerError, OSError) as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # it came while a rule was computing
            sys.exit(130)
        print(f"replay: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
    if until is not None and until > min(replayed.version):
        print(f"replay: the run ends at version {replayed.version}, before --until {until}", file=sys.stderr)
    if as_json:
        shapes = {name: [value.dtype.name, list(value.shape)] for name, value in replayed.values.items()}
        said = {"version": replayed.version, "rule": replayed.rule, "digest": replayed.digest(), "values": shapes}
        print(json.dumps(said))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("variable", "dtype", "shape", "mean", "norm")
    for name, value in replayed.values.items():
        wide = value.astype(np.float64)
        mean, norm = (f"{wide.mean():.6g}", f"{np.linalg.norm(wide):.6g}") if value.size else ("", "")
        table.add_row(escape(name), value.dtype.name, str(value.shape), mean, norm)
    console = Console(markup=False, highlight=False)  # a rule has brackets that are no markup
    console.print(f"version {replayed.version}, {replayed.rule}", soft_wrap=True)
    console.print(table)
    ending = f"digest {replayed.digest()}" + (f", written to {out}" if out is not None else "")
    console.print(ending, soft_wrap=True)


if __name__ == "__main__":
    main()
