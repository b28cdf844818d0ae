"""What must be written down of a run so that it can be made again, bit for bit? The story, and what it is about.

A record is one file a ps: entries in the order in which they happened, each one line of JSON and, if the line says "bytes",
so many raw bytes after it. Besides the events of the story these are first values, gradients as they were pushed, values
that were assigned, sums over all ps, and, for rules that ask for the value read, who has read what. Nothing in it can be
executed. A record that ends in the middle of an entry, as after a kill -9, is read up to there.

It must not know modes or rules. Next: ps/replay.py, which reads it; ps/story.py.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from protos.codec import Array, dtype_of
from protos.errors import InvalidInput
from ps.aggregation import Contribution
from ps.configuration import Configuration
from ps.membership import Session
from ps.rules import UpdateRule
from ps.story import Event
from ps.variable import DenseGradient, Paged, Partition, PartitionKey, SparseGradient

log = logging.getLogger("paramserver.ps")

FORMAT = "paramserver record 1"


def path_of(record: str | Path, ps_index: int) -> Path:
    """Where ps `ps_index` writes its part of a record: NAME.psN."""
    path = Path(record)
    return path.with_name(f"{path.name}.ps{ps_index}")


class Recorder:
    """Writes the record of one ps; without a file, as by default, nothing. One that cannot be written ends there."""

    def __init__(self, file: BinaryIO | None = None) -> None:
        self._file = file

    @staticmethod
    def to(path: Path, ps_index: int, num_ps: int) -> Recorder:
        """A record begun at this path. OSError if it cannot be."""
        path.parent.mkdir(parents=True, exist_ok=True)
        recorder = Recorder(path.open("wb"))
        recorder._write({"format": FORMAT, "ps": ps_index, "num_ps": num_ps})
        return recorder

    def event(self, event: Event) -> None:
        """An event of the story, when it has happened."""
        if self._file is not None:
            self._write({"event": json.loads(event.to_json())})

    def init(self, configuration: Configuration, partitions: Sequence[Partition], rule: UpdateRule | None) -> None:
        """The first values, and what is done with gradients."""
        said = {
            "configuration": asdict(configuration),
            "partitions": [asdict(each.key) for each in partitions],
            "rule_source": source_digest(rule),
        }
        self._write(said, ((None, partition.value.whole()) for partition in partitions))

    def gradient(self, session: Session[Any], sequence: int, contribution: Contribution) -> None:
        """A gradient that is about to be applied, or held for a step."""
        said = {
            "gradient": [session.worker, session.generation, sequence],
            "session": session.id,
            "weight": contribution.weight,
            "norm": contribution.norm,
        }
        self._write(said, _gradient_arrays(contribution))

    def values(self, values: Mapping[int, Paged | SparseGradient]) -> None:
        """Values that are assigned: whole ones, or elements of packs."""
        self._write({"values": True}, _value_arrays(values))

    def read(self, session: Session[Any], version: int) -> None:
        """A session has pulled the present values."""
        self._write({"read": session.id, "version": version})

    def sums(self, sums: Array) -> None:
        """What all ps together answered to a sum that a step asked for."""
        self._write({"sums": True}, [(None, sums)])

    def flush(self) -> None:
        """Hand what has been written to the system: it survives the end of this process."""
        self._act(lambda file: file.flush())

    def close(self) -> None:
        self._act(lambda file: file.close())
        self._file = None

    def _write(self, said: dict[str, Any], arrays: Iterable[tuple[int | None, Array]] = ()) -> None:
        if self._file is None:
            return
        if there := list(arrays):
            said["arrays"] = [[index, array.dtype.name, list(array.shape)] for index, array in there]
            said["bytes"] = sum(array.nbytes for _, array in there)

        def write(file: BinaryIO) -> None:
            file.write(json.dumps(said).encode() + b"\n")
            for _, array in there:
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

        self._act(write)

    def _act(self, act: Callable[[BinaryIO], object]) -> None:
        if self._file is None:
            return
        try:
            act(self._file)
        except OSError as error:  # a full disk ends the record, not the training
            log.error("the record ends here, for it cannot be written: %s", error)
            self._file = None


def _gradient_arrays(contribution: Contribution) -> Iterator[tuple[int, Array]]:
    for index, gradient in contribution.gradients.items():
        if isinstance(gradient, SparseGradient):
            yield index, gradient.indices
            yield index, gradient.rows
        else:
            yield index, gradient.value.whole()


def source_digest(rule: UpdateRule | None) -> str:
    """Of the code of a rule: one that has changed since would not do the same. Empty where there is no code to be had."""
    try:
        return hashlib.sha256(inspect.getsource(type(rule)).encode()).hexdigest() if rule is not None else ""
    except (OSError, TypeError):
        return ""


def _value_arrays(values: Mapping[int, Paged | SparseGradient]) -> Iterator[tuple[int, Array]]:
    for index, value in values.items():
        if isinstance(value, SparseGradient):
            yield index, value.indices
            yield index, value.rows
        else:
            yield index, value.whole()


class Entry(dict[str, Any]):
    """One entry as it was written. arrays: (partition id or None, array), read-only, in order."""

    arrays: list[tuple[int | None, Array]]


def entries(path: Path) -> Iterator[Entry]:
    """The entries of one ps's record, the header first. InvalidInput if it is none; a torn end is left out."""
    with path.open("rb") as file:
        for number, line in enumerate(file):
            try:
                entry = Entry(json.loads(line))
            except (ValueError, TypeError):
                if number and not line.endswith(b"\n"):
                    return
                raise _no_record(path, f"entry {number} is no JSON") from None
            if number == 0 and entry.get("format") != FORMAT:
                raise _no_record(path, f"format {entry.get('format')!r}")
            data = file.read(entry.get("bytes", 0))
            if len(data) < entry.get("bytes", 0):
                return
            entry.arrays = list(_arrays(entry, data))
            yield entry


def _arrays(entry: Entry, data: bytes) -> Iterator[tuple[int | None, Array]]:
    start = 0
    for index, name, shape in entry.get("arrays", ()):
        dtype, count = np.dtype(name) if name in ("int64", "float64") else dtype_of(name), int(np.prod(shape))
        yield index, np.frombuffer(data, dtype, count, start).reshape(shape)
        start += count * dtype.itemsize


def contribution_of(entry: Entry, partitions: Sequence[Partition]) -> Contribution:
    """The gradient in an entry, cut in pages as the partitions are."""
    gradients: dict[int, DenseGradient | SparseGradient] = {}
    arrays = iter(entry.arrays)
    for index, array in arrays:
        assert index is not None
        if array.dtype == np.int64:
            gradients[index] = SparseGradient(array, next(arrays)[1])
        else:
            gradients[index] = DenseGradient(Paged.cut_like(array.reshape(-1), partitions[index].value))
    return Contribution(gradients, entry["weight"], entry["norm"])


def values_of(entry: Entry, partitions: Sequence[Partition]) -> dict[int, Paged | SparseGradient]:
    """The values in an entry. A pack is of floats: integers are the numbers of elements, and their values follow."""
    values: dict[int, Paged | SparseGradient] = {}
    arrays = iter(entry.arrays)
    for index, array in arrays:
        assert index is not None
        if array.dtype == np.int64 and partitions[index].key.members:
            values[index] = SparseGradient(array, next(arrays)[1])
        else:
            values[index] = Paged.cut_like(array.reshape(-1), partitions[index].value)
    return values


def key_of(said: Mapping[str, Any]) -> PartitionKey:
    """A partition as `asdict` wrote it."""
    members = tuple(key_of(member) for member in said["members"])
    return PartitionKey(**{**said, "variable_shape": tuple(said["variable_shape"]), "members": members})


def _no_record(path: Path, got: str) -> InvalidInput:
    return InvalidInput(field=f"record {path}", got=got, expected=FORMAT, hint="Give the name that --record was given.")
