"""How do whole arrays become blocks for each ps, and back? What the client refuses before it sends anything to anybody.

The ps of these tests are an intake and a list of partitions: no grpc between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import partitioner
from client.initialize import checked_values, configuration, rule_spec, table_blocks, tables, variable_specs
from client.model import IndexedSlices, Model
from client.partitioner import FixedShardsPartitioner, Partitioner
from client.receiver import Receiver
from protos import parameter_server_pb2 as pb
from protos.codec import DTYPES, sparse_blocks
from protos.errors import (
    ConfigurationConflict,
    DtypeMismatch,
    InternalError,
    InvalidInput,
    NonFiniteGradient,
    NotTrainable,
    ParameterServerError,
    RowOutOfRange,
    ShapeMismatch,
    UnknownVariable,
)
from protos.wire import Block
from ps.intake import Intake, partition_key
from ps.rules import make_rule
from ps.variable import DenseGradient, Paged, Partition, SparseGradient
from tests.core.builders import small_pages

rng = np.random.default_rng(5)
VALUES: dict[str, Any] = {
    "emb/table": rng.normal(size=(13, 3)).astype("f"),
    "größe": np.array(2.5),
    "half": rng.normal(size=(9,)).astype(DTYPES["bfloat16"]),
    "nothing": np.zeros((0, 4), np.float32),
    "seen": np.arange(40),
    "flags": np.array([True, False]),
}


class Job:
    """Some ps without sockets: they hold partitions, take blocks and give blocks."""

    def __init__(self, values: Mapping[str, Any], num_ps: int, partitioner: Partitioner) -> None:
        arrays = checked_values(values)
        self.tables = tables(variable_specs(arrays, ()), arrays, partitioner, num_ps, elementwise=True, packed=True)
        self.partitions = []
        for table in self.tables:
            keys = [partition_key(spec) for spec in table]
            intake = Intake(keys)
            for block in table_blocks(table, arrays):
                intake.add(block)
            held = intake.values()
            self.partitions.append([Partition(key, held[index]) for index, key in enumerate(keys)])
        self.model = Model([pb.DescribeReply(partitions=table, initialized=True) for table in self.tables])

    def pull(self, names: list[str], rows: dict[str, Any] | None = None) -> dict[str, Any]:
        makers, ids = self.model.row_blocks(rows or {})
        receiver = Receiver(self.model, names, ids)
        for ps, (wanted, maker) in enumerate(zip(self.model.partitions(names), makers)):
            receiver.start(ps)
            for index in wanted:
                for number, page in enumerate(self.partitions[ps][index].value.pages):
                    receiver.take(ps, Block(index, number, page.tobytes()))
            asked = self.intake(ps, list(maker()))
            for index, indices in asked.rows().items():
                found = self.partitions[ps][index].value.rows(indices)
                for block in sparse_blocks(index, indices, found):
                    receiver.take(ps, block)
        return receiver.values

    def intake(self, ps: int, blocks: list[pb.Block], *, gradients: bool = False) -> Intake:
        intake = Intake([held.key for held in self.partitions[ps]], gradients=gradients)
        for block in blocks:
            intake.add(block)
        return intake


@pytest.mark.parametrize("num_ps", [1, 2, 5])
@pytest.mark.parametrize("shards", [1, 4])
def test_what_was_initialised_is_pulled_bit_for_bit(num_ps: int, shards: int) -> None:
    # claim 7
    with small_pages():
        pulled = Job(VALUES, num_ps, FixedShardsPartitioner(shards)).pull(list(VALUES))
    assert set(pulled) == set(VALUES)
    for name, value in VALUES.items():
        assert pulled[name].shape == value.shape
        assert pulled[name].dtype == value.dtype
        assert pulled[name].tobytes() == value.tobytes()
        pulled[name][...] = 0  # the caller's own


@given(
    shape=st.lists(st.integers(0, 12), max_size=3).map(tuple),
    num_ps=st.integers(1, 4),
    shards=st.integers(1, 6),
    data=st.data(),
)
def test_rows_come_back_in_the_order_they_were_asked_for(
    shape: tuple[int, ...], num_ps: int, shards: int, data: st.DataObject
) -> None:
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with small_pages():
        job = Job({"w": value}, num_ps, FixedShardsPartitioner(shards))
        np.testing.assert_array_equal(job.pull(["w"])["w"], value)
        if shape and shape[0]:
            ids = data.draw(st.lists(st.integers(0, shape[0] - 1), max_size=20))
            rows = job.pull([], {"w": ids})["w"]
            np.testing.assert_array_equal(rows, value[np.array(ids, int)])


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variable a partition of its own; packs are in tests/wire/test_packs.py."""
    monkeypatch.setattr(partitioner, "SMALL_BYTES", 0)


def test_a_gradient_arrives_at_each_ps_as_its_rows(unpacked: None) -> None:
    gradient = rng.normal(size=(13, 3)).astype("f")
    job = Job(VALUES, 3, FixedShardsPartitioner(5))
    makers = job.model.gradient_blocks({"emb/table": gradient}, guard_nonfinite=True)
    seen = np.full((13, 3), np.nan, "f")
    for ps, maker in enumerate(makers):
        assert [b.data for b in maker()] == [b.data for b in maker()]  # made anew for a retry
        for index, part in job.intake(ps, list(maker()), gradients=True).gradients(guard_nonfinite=True).items():
            key = job.partitions[ps][index].key
            assert isinstance(part, DenseGradient)
            seen[key.start : key.stop] = part.value.whole()
    np.testing.assert_array_equal(seen, gradient)


def test_sparse_rows_arrive_at_the_ps_that_hold_them_and_repeated_ones_are_summed(unpacked: None) -> None:
    ids = np.array([12, 0, 5, 12], np.int32)
    rows = np.array([[1, 1, 1], [2, 2, 2], [3, 3, 3], [10, 10, 10]], np.float32)
    job = Job(VALUES, 3, FixedShardsPartitioner(5))
    makers = job.model.gradient_blocks({"emb/table": IndexedSlices(rows, ids)}, guard_nonfinite=False)
    total = np.zeros((13, 3), "f")
    for ps, maker in enumerate(makers):
        for index, part in job.intake(ps, list(maker()), gradients=True).gradients(guard_nonfinite=False).items():
            assert isinstance(part, SparseGradient)
            total[part.indices + job.partitions[ps][index].key.start] += part.rows
    assert total[[0, 5, 12], 0].tolist() == [2, 3, 11]
    assert np.count_nonzero(total[:, 0]) == 3


def test_values_of_any_layout_may_be_assigned(unpacked: None) -> None:
    job = Job({"w": np.zeros((4, 6), np.float32)}, 2, FixedShardsPartitioner(3))
    value = np.arange(24, dtype=">f4").reshape(6, 4).T
    found = np.zeros((4, 6), "f")
    for ps, maker in enumerate(job.model.value_blocks({"w": value})):
        for index, paged in job.intake(ps, list(maker())).assigned().items():
            assert isinstance(paged, Paged)
            key = job.partitions[ps][index].key
            found[key.start : key.stop] = paged.whole()
    np.testing.assert_array_equal(found, value)


# -- refused before anything is sent (claims 11 and 12) --------------------------------------------------------------------

JOB = Job(VALUES, 2, FixedShardsPartitioner(2))
TABLE = VALUES["emb/table"]


def slices(rows: Any, ids: Any) -> IndexedSlices:
    return IndexedSlices(np.array(rows, "f"), ids)


@pytest.mark.parametrize(
    ("gradients", "error", "field", "got", "expected"),
    [
        ({"nope": TABLE}, UnknownVariable, "nope", "a name that was not initialised", "one of emb/table, flags"),
        ({"seen": np.arange(40)}, NotTrainable, "seen", "a gradient", "assign"),
        ({"emb/table": TABLE.T}, ShapeMismatch, "gradient of emb/table", "(3, 13)", "(13, 3)"),
        ({"emb/table": TABLE[0]}, ShapeMismatch, "gradient of emb/table", "(3,)", "(13, 3)"),
        ({"emb/table": TABLE[:, :, None]}, ShapeMismatch, "gradient of emb/table", "(13, 3, 1)", "(13, 3)"),
        ({"emb/table": TABLE.astype("d")}, DtypeMismatch, "gradient of emb/table", "float64", "float32"),
        ({"emb/table": None}, DtypeMismatch, "gradient of emb/table", "object", "bool"),
        ({"größe": slices([1], [0])}, ShapeMismatch, "gradient of größe", "rows of a scalar", "rows"),
        ({"emb/table": slices([[1, 2, 3]], [13])}, RowOutOfRange, "gradient of emb/table", "row 13", "0 to 12"),
        ({"emb/table": slices([[1, 2, 3]], [-1])}, RowOutOfRange, "gradient of emb/table", "row -1", "0 to 12"),
        ({"emb/table": slices([[1, 2]], [0])}, ShapeMismatch, "gradient of emb/table", "(1, 2)", "(1, 3)"),
        ({"emb/table": slices([[1, 2, 3]], [0, 1])}, ShapeMismatch, "gradient of emb/table", "(1, 3)", "(2, 3)"),
        (
            {"emb/table": slices([[1, 2, 3]], [0.0])},
            DtypeMismatch,
            "gradient of emb/table, indices",
            "float64 (1,)",
            "integers",
        ),
        (
            {"emb/table": slices([[1, 2, 3]], [[0]])},
            DtypeMismatch,
            "gradient of emb/table, indices",
            "int64 (1, 1)",
            "one dimension",
        ),
        ({"emb/table": TABLE * np.nan}, NonFiniteGradient, "gradient of emb/table", "39 of 39 elements", "finite"),
        (
            {"emb/table": slices([[1, np.inf, 3]], [4])},
            NonFiniteGradient,
            "gradient of emb/table",
            "1 of 3 elements",
            "finite",
        ),
        (
            {"emb/table": slices([[3e38, 2, 3], [3e38, 2, 3], [0, 0, 0]], [4, 4, 5])},  # each is finite, the sum is not
            NonFiniteGradient,
            "gradient of emb/table",
            "1 of 6 elements of the sums of repeated rows",
            "finite",
        ),
        ([TABLE], InvalidInput, "gradients", "list", "a mapping"),
    ],
)
def test_a_gradient_that_cannot_be_is_refused_by_name(
    gradients: Any, error: type[ParameterServerError], field: str, got: str, expected: str
) -> None:
    # claim 11
    with pytest.raises(error) as caught:
        JOB.model.gradient_blocks(gradients, guard_nonfinite=True)
    assert type(caught.value) is error
    assert (caught.value.field, caught.value.got) == (field, got)
    assert expected in caught.value.expected


def test_one_bad_gradient_among_good_ones_refuses_them_all() -> None:
    # claim 12
    with pytest.raises(ShapeMismatch):
        JOB.model.gradient_blocks({"emb/table": TABLE, "größe": np.zeros(1)}, guard_nonfinite=False)


@pytest.mark.parametrize(
    ("rows", "error", "got"),
    [
        ({"emb/table": [13]}, RowOutOfRange, "row 13"),
        ({"emb/table": [1.5]}, DtypeMismatch, "float64 (1,)"),
        ({"emb/table": [True]}, DtypeMismatch, "bool (1,)"),
        ({"größe": [0]}, ShapeMismatch, "rows of a scalar"),
        ({"nothing": [0]}, RowOutOfRange, "row 0"),
        ({"nope": [0]}, UnknownVariable, "a name that was not initialised"),
    ],
)
def test_rows_that_are_not_there_are_refused(rows: Any, error: type[ParameterServerError], got: str) -> None:
    # claim 11
    with pytest.raises(error) as caught:
        JOB.model.row_blocks(rows)
    assert caught.value.got == got


def test_no_rows_of_a_variable_are_an_answer_too() -> None:
    rows = JOB.pull([], {"emb/table": []})["emb/table"]
    assert (rows.shape, rows.dtype) == ((0, 3), np.float32)


def test_a_model_with_a_hole_is_told() -> None:
    # Half of a table is missing: one ps was restarted and holds nothing.
    described = [pb.DescribeReply(partitions=JOB.tables[0]), pb.DescribeReply()]
    with pytest.raises(InternalError) as caught:
        Model(described)
    assert "each once" in caught.value.expected


# -- how a model is described at the beginning ----------------------------------------------------------------------------


def test_floats_are_trainable_unless_named_and_the_rest_never_is() -> None:
    specs = variable_specs(checked_values(VALUES), ["half"])
    assert {spec.name for spec in specs if spec.trainable} == {"emb/table", "größe", "nothing"}
    with pytest.raises(UnknownVariable):
        variable_specs(checked_values(VALUES), ["nope"])


@pytest.mark.parametrize("name", ["", "a\nb", 5, None])
def test_a_name_that_cannot_be_shown_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked_values({name: np.zeros(1)})
    assert (caught.value.field, caught.value.got) == ("variable name", repr(name))


def test_a_rule_as_a_mapping_says_the_same_as_its_spec() -> None:
    mapping = {"name": "momentum", "learning_rate": np.float32(0.5), "nesterov": np.bool_(True), "momentum": 0.25}
    assert rule_spec(mapping) == "momentum:learning_rate=0.5,nesterov=True,momentum=0.25"
    assert make_rule(rule_spec(mapping)) == make_rule(mapping)
    assert rule_spec({"name": "sgd"}) == rule_spec("sgd") == "sgd"
    assert rule_spec(None) == ""


@pytest.mark.parametrize("rule", [{"learning_rate": 1}, {"name": 5}, {}])
def test_a_rule_without_a_name_is_refused(rule: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        rule_spec(rule)
    assert (caught.value.field, caught.value.got) == ("rule", repr(rule))


@pytest.mark.parametrize("field", ["slack", "backup_workers"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "2"])
def test_what_is_no_number_of_iterations_or_workers_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationConflict) as caught:
        configuration(None, None, **{"slack": None, "backup_workers": None, field: value})
    assert (caught.value.field, caught.value.got) == (field, repr(value))
