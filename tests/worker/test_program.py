"""What does `ps-worker` do with its command line, and what if the ps end before the evaluator is done? Without any ps."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from protos.errors import NotJoined, ParameterServerError, PeerUnavailable
from worker import evaluation, modelfile, program
from worker.command import main
from worker.modelfile import ModelFile
from worker.program import RequirementNotMet, Settings
from worker.stopping import Stopping

# -- a flag comes first --------------------------------------------------------------------------------------------------

TF_CONFIG = '{"cluster": {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}'


def settings_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *flags: str, **env: str) -> Any:
    """What `ps-worker` would work with; or, if it refuses, what it says."""
    file = tmp_path / "model.py"
    file.write_text("def build_model(): ...\ndef make_dataset(worker, workers): ...\ndef loss(labels, outputs): ...\n")
    taken: list[Settings] = []
    monkeypatch.setattr(program, "work", lambda settings, stopping: taken.append(settings))
    monkeypatch.setattr("worker.command.Stopping", lambda: None)  # no signal handlers in this process
    monkeypatch.setattr("worker.command.recycle_pages", lambda: None)
    result = CliRunner().invoke(
        main, [str(file), *flags], env={"TF_CONFIG": TF_CONFIG, **env}, auto_envvar_prefix="PARAMSERVER"
    )
    return taken[0] if taken else result.output


@pytest.mark.parametrize(
    ("flag", "variable", "expected"),
    [("--epochs", "PARAMSERVER_STEPS", (None, 3)), ("--steps", "PARAMSERVER_EPOCHS", (3, None))],
)
def test_a_length_by_flag_wins_over_the_other_length_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flag: str, variable: str, expected: tuple[Any, Any]
) -> None:
    settings = settings_of(monkeypatch, tmp_path, flag, "3", **{variable: "500"})
    assert (settings.steps, settings.epochs) == expected


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        (("--steps", "3", "--epochs", "4"), {}),
        ((), {"PARAMSERVER_STEPS": "3", "PARAMSERVER_EPOCHS": "4"}),
    ],
)
def test_both_lengths_from_one_place_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: tuple[str, ...], env: dict[str, str]
) -> None:
    assert "got --steps 3 and --epochs 4" in settings_of(monkeypatch, tmp_path, *flags, **env)


# -- what is required ------------------------------------------------------------------------------------------------------


class Worker(contextlib.nullcontext["Worker"]):
    """A worker that has joined, and is asked for nothing before the file is seen to be right."""

    worker, num_workers = 0, 1

    def __enter__(self) -> Worker:
        return self

    def leave(self, reason: str = "") -> None:
        """There is nobody to tell."""


def test_a_requirement_without_an_evaluation_to_hold_it_against_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "model.py"
    path.write_text("def build_model(): ...\ndef make_dataset(worker, workers): ...\ndef loss(labels, outputs): ...\n")
    monkeypatch.setattr(program, "_connect", lambda settings: Worker())
    monkeypatch.setattr(program, "_load", lambda settings: (modelfile.load(path), None))  # without TensorFlow
    monkeypatch.setattr("worker.command.Stopping", lambda: SimpleNamespace(leave=None, hold=lambda: None))
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which the file's directory is added
    monkeypatch.setattr("worker.command.recycle_pages", lambda: None)
    result = CliRunner().invoke(main, [str(path), "--require", "accuracy=0.9"], env={"TF_CONFIG": TF_CONFIG})
    assert result.exit_code == 2
    said = f"InvalidInput: --require: invalid input: got no evaluate(model) in {path}, expected one, whose result"
    assert said in " ".join(result.output.split())


def test_a_loss_scale_that_is_none_is_refused_and_so_is_one_with_local_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = settings_of(monkeypatch, tmp_path, "--local-steps", "4", PARAMSERVER_STEPS="3")
    assert (settings.local_steps, settings.loss_scale, settings.steps) == (4, None, 3)
    assert settings_of(monkeypatch, tmp_path, PARAMSERVER_LOSS_SCALE="dynamic").loss_scale == "dynamic"
    assert "got '-1', expected dynamic, or a number above 0" in settings_of(monkeypatch, tmp_path, "--loss-scale", "-1")
    both = settings_of(monkeypatch, tmp_path, "--loss-scale", "8", "--local-steps", "4")
    assert "got --loss-scale 8 and --local-steps 4" in both


def test_prefetch_is_a_flag_or_a_variable_and_is_refused_with_local_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert settings_of(monkeypatch, tmp_path).prefetch is False
    assert settings_of(monkeypatch, tmp_path, "--prefetch").prefetch is True
    assert settings_of(monkeypatch, tmp_path, PARAMSERVER_PREFETCH="1").prefetch is True
    both = settings_of(monkeypatch, tmp_path, "--prefetch", "--local-steps", "4")
    assert "got --prefetch and --local-steps 4" in both


# -- an evaluator and its ps -----------------------------------------------------------------------------------------------


class Observer:
    """An observer whose ps answer these, one after the other: each the state of the only worker, or an error."""

    num_workers = 1

    def __init__(self, *answers: str | ParameterServerError) -> None:
        self._answers = list(answers)

    def status(self) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, ParameterServerError):
            self._answers.insert(0, answer)
            raise answer
        return {"step": 3, "version": [3], "ps": [{"initialized": True}], "workers": [{"state": answer, "clock": 3}]}

    def pull(self) -> Any:
        raise NotJoined

    def leave(self) -> None:
        """It counts nowhere."""


def follow(observer: Any) -> bool:
    def never(values: Any) -> None:
        raise AssertionError("there was nothing to evaluate")

    return evaluation.follow(observer, never, period_s=3600, wait_timeout_s=30)


def test_a_ps_that_ends_before_the_last_pull_means_no_last_evaluation() -> None:
    assert follow(Observer("left")) is False


def test_a_ps_that_is_gone_means_no_last_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "SILENCE_S", 0.0)
    assert follow(Observer("active", PeerUnavailable())) is False


@pytest.mark.parametrize("required", [{}, {"accuracy": 0.9}])
def test_without_a_last_evaluation_nothing_that_is_required_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], required: dict[str, float]
) -> None:
    class Built:
        built = True

    file = ModelFile.__new__(ModelFile)
    object.__setattr__(file, "evaluate", lambda model: {"accuracy": 1.0})

    @contextlib.contextmanager
    def observing(settings: Any) -> Iterator[Any]:
        yield Observer("left")

    monkeypatch.setattr(program, "_observing", observing)
    monkeypatch.setattr(program, "_load", lambda settings: (file, Built()))
    settings = Settings(Path("model.py"), None, None, None, None, None, None, 0.0, required, 1.0, 30.0)
    if required:
        with pytest.raises(RequirementNotMet, match="got no last evaluation"):
            program.follow(settings, Stopping.__new__(Stopping))
    else:
        program.follow(settings, Stopping.__new__(Stopping))
    assert "the ps ended before a last evaluation" in capsys.readouterr().out
