"""Can a run be made again from its record, to the last bit? Real clients in threads, in every mode, with every kind of push."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import client
import ps
from protos.errors import InvalidInput, RuleFailed
from ps.record import path_of
from ps.replay import Replayed, main, replay
from ps.rules import Transform, configured, register
from tests.harness.threads import together

WORKERS = 3
VALUES = {
    "emb": np.linspace(-1, 1, 60, dtype=np.float32).reshape(20, 3),
    "h": np.linspace(0, 1, 5).astype(np.float16),
    "half": np.ones(4, np.float16),
    "w": np.linspace(-2, 2, 12).reshape(4, 3),
    "n": np.arange(2),
}


def train(worker: client.Client, index: int, steps: int) -> None:
    """Pushes of every kind: dense, by rows, scaled, weighted, of some variables only; and values by hand."""
    rng = np.random.default_rng(index)
    worker.init(VALUES, partitioner=client.FixedShardsPartitioner(2))
    for step in range(steps):
        worker.pull()
        rows = client.IndexedSlices(rng.normal(size=(2, 3)).astype("f"), rng.integers(0, 20, 2))
        gradients: dict[str, Any] = {"emb": rows if step % 2 else rng.normal(size=(20, 3)).astype("f")}
        if step % 3:
            gradients |= {"h": rng.normal(size=5).astype(np.float16), "half": rng.normal(size=4).astype(np.float16)}
            gradients |= {"w": rng.normal(size=(4, 3))}
        worker.push(gradients, weight=index + 1, scale=4.0 if step % 2 else 1.0)
        if index == 0 and step == 1:
            worker.assign({"n": np.array([step, step])})
            worker.assign({"h": np.arange(5).astype(np.float16)})
    worker.pull()
    worker.leave()


def recorded(path: Path, mode: str, rule: str, steps: int = 6, servers: int = 2, **more: Any) -> dict[str, Any]:
    """The values that a run of several workers ended with."""
    with (
        ps.LocalCluster(servers, mode, WORKERS, rule=rule, record=path, **more) as local,
        client.connect(local.cluster, observer=True) as observer,
    ):
        workers = [client.connect(local.cluster, worker=index) for index in range(WORKERS)]
        calls: list[Callable[[], None]] = [
            lambda each=each, index=index: train(each, index, steps)  # type: ignore[misc]
            for index, each in enumerate(workers)
        ]
        together(calls)
        return dict(observer.pull())


def assert_same(replayed: Replayed, values: dict[str, Any]) -> None:
    assert replayed.values.keys() == values.keys()
    for name, value in values.items():
        assert (replayed.values[name].dtype, replayed.values[name].shape) == (value.dtype, value.shape)
        assert replayed.values[name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize(
    ("mode", "rule"),
    [
        ("async", "momentum:learning_rate=0.1"),
        ("async", "adam:learning_rate=exponential_decay(0.1,decay_steps=3,decay_rate=0.5)"),
        ("async", "sgd:learning_rate=0.1,global_clipnorm=0.5"),
        ("async", "dc_asgd:learning_rate=0.1"),
        ("async", "dana:learning_rate=0.05,use_ema=true,ema_overwrite_frequency=4"),
        ("ssp", "adam:learning_rate=0.1,transforms=[scale_by_staleness]"),
        ("sync", "adam:learning_rate=0.1,weight_decay=0.01"),
        ("sync", "momentum:learning_rate=0.1,global_clipnorm=0.5"),
        ("sync", "sgd:learning_rate=0.1,aggregation=weighted_mean,gradient_accumulation_steps=2"),
        ("sync", "lamb:learning_rate=0.1"),
    ],
)
def test_a_replay_ends_with_the_bits_of_the_run(mode: str, rule: str, tmp_path: Path) -> None:
    values = recorded(tmp_path / "run", mode, rule)
    assert_same(replay(tmp_path / "run"), values)
    assert replay(tmp_path / "run").digest() == replay(tmp_path / "run").digest()


def test_a_replay_with_backup_workers_leaves_out_whom_the_run_left_out(tmp_path: Path) -> None:
    values = recorded(tmp_path / "run", "sync", "momentum:learning_rate=0.1", backup_workers=1)
    assert_same(replay(tmp_path / "run"), values)


def test_a_replay_can_stop_on_the_way_and_try_another_rule(tmp_path: Path) -> None:
    path = tmp_path / "run"
    values = recorded(path, "sync", "sgd:learning_rate=0.5")
    assert replay(path, until=0).values["emb"].tolist() == VALUES["emb"].tolist()
    halfway = replay(path, until=3)
    assert halfway.version == (3, 3)
    assert halfway.digest() not in (replay(path).digest(), replay(path, until=0).digest())
    assert_same(replay(path, rule="sgd:learning_rate=0.5"), values)
    other = replay(path, rule="adam:learning_rate=0.5")
    assert other.rule.startswith("adam")
    assert other.digest() != replay(path).digest()


@pytest.fixture
def fails_if_large() -> Iterator[None]:
    """A transform that fails on the ps that holds the large gradient."""

    @register("fails_if_large")
    class FailsIfLarge(Transform):
        def transform(self, ctx: Any, value: Any, grad: Any, *slots: Any) -> Any:
            if np.abs(grad).max() > 1.5:
                raise OverflowError("too large")
            return grad

    yield
    del configured._REGISTRY["transform"]["fails_if_large"]


def test_a_step_that_failed_after_its_sum_leaves_nothing_to_the_next(tmp_path: Path, fails_if_large: None) -> None:
    path, first = tmp_path / "run", {name: np.zeros(4, np.float32) for name in "ab"}
    rule = "sgd:learning_rate=1,transforms=[clip_by_global_norm(2),fails_if_large]"
    with (
        ps.LocalCluster(2, "sync", rule=rule, record=path) as local,
        client.connect(local.cluster, worker=0) as worker,
    ):
        worker.init(first)
        with pytest.raises(RuleFailed, match="too large"):
            worker.push({**first, "b": np.array([9, 0, 0, 0], np.float32)})
        worker.push({name: np.ones(4, np.float32) for name in first})
        values = dict(worker.pull())
    assert_same(replay(path), values)


def test_another_rule_that_needs_a_sum_over_all_ps_is_refused_and_none_is_made_up(tmp_path: Path) -> None:
    clip = "sgd:learning_rate=0.1,global_clipnorm=0.5"
    for mode, rule in (
        ("async", "sgd:learning_rate=0.1"),
        ("sync", "sgd:learning_rate=0.1,aggregation=krum(byzantine=0)"),
    ):
        recorded(tmp_path / mode, mode, rule, steps=2)
        with pytest.raises(InvalidInput, match="a sum over all ps"):
            replay(tmp_path / mode, rule=clip)
    recorded(tmp_path / "one", "async", "sgd:learning_rate=0.1", steps=2, servers=1)
    assert replay(tmp_path / "one", rule=clip).version == (6,)


def test_a_record_that_breaks_off_is_read_up_to_there(tmp_path: Path) -> None:
    # As kill -9 leaves it: in the middle of an entry, wherever that is.
    path = tmp_path / "run"
    recorded(path, "async", "sgd:learning_rate=0.1", steps=3, servers=1)
    whole = path_of(path, 0).read_bytes()
    ends = [replay(path).version]
    for share in (0.9, 0.7, 0.5):
        path_of(path, 0).write_bytes(whole[: int(len(whole) * share)])
        ends.append(replay(path).version)
    assert ends == sorted(ends, reverse=True)
    assert ends[0] > ends[-1] > (0,)


def test_what_is_no_record_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no file .*nothing\.ps0"):
        replay(tmp_path / "nothing")
    header = b'{"format": "paramserver record 1", "ps": 0, "num_ps": %s}\n'
    for content in (b"", b"hello\n", b'{"format": "another"}\n', b"\x80\x04K\x01.", b"[1]\n", header % b"0"):
        path_of(tmp_path / "odd", 0).write_bytes(content)
        with pytest.raises(InvalidInput, match=r"odd\.ps0"):
            replay(tmp_path / "odd")
    path_of(tmp_path / "odd", 0).write_bytes(header % b"2")
    with pytest.raises(InvalidInput, match=r"no file .*odd\.ps1"):
        replay(tmp_path / "odd")


def test_the_program_shows_the_model_and_writes_it(tmp_path: Path) -> None:
    path, out = tmp_path / "run", tmp_path / "weights.npz"
    values = recorded(path, "async", "sgd:learning_rate=0.1", steps=2)
    said = CliRunner().invoke(main, [str(path), "--out", str(out)])
    assert said.exit_code == 0, said.output
    assert "emb" in said.output
    with np.load(out) as loaded:
        assert loaded["w"].tobytes() == values["w"].tobytes()
    told = json.loads(CliRunner().invoke(main, [str(path), "--json"]).output)
    assert told["digest"] == replay(path).digest()
    assert told["version"] == [6, 6]
    assert CliRunner().invoke(main, [str(tmp_path / "nothing")]).exit_code == 2


def test_the_program_understands_what_is_nearly_right_and_says_what_is_wrong(tmp_path: Path) -> None:
    path, rule = tmp_path / "run", "sgd:learning_rate=0.1,transforms=[clip_by_norm(1)]"
    recorded(path, "async", rule, steps=2)
    said = CliRunner().invoke(
        main, [f"{path}.ps1", "--out", str(tmp_path / "w3"), "--until", "7"], env={"COLUMNS": "200"}
    )
    assert said.exit_code == 0, said.output
    assert "transforms=[clip_by_norm(limit=1.0)]" in said.output
    assert "replay: the run ends at version (6, 6), before --until 7\n" in said.output
    assert "w3.npz" in said.output
    assert (tmp_path / "w3.npz").is_file()
    refused = CliRunner().invoke(main, [str(path), "--out", str(tmp_path / "nowhere" / "w.npz")])
    assert (refused.exit_code, len(refused.output.splitlines())) == (2, 1)
    assert "no directory" in refused.output


def test_a_rule_whose_code_has_changed_since_is_not_taken_for_the_one_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    recorded(path, "async", "sgd:learning_rate=0.1", steps=2)
    now = replay(path)
    monkeypatch.setattr("ps.replay.source_digest", lambda rule: "of other code")
    with pytest.raises(InvalidInput, match="changed since"):
        replay(path)
    assert replay(path, rule="sgd:learning_rate=0.1").digest() == now.digest()
