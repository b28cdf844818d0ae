"""What does ps-worker say about a model file that is not right?"""

from __future__ import annotations

from pathlib import Path

import pytest

from protos.errors import InvalidInput
from worker import modelfile

WHOLE = """
import neighbour
def build_model(): return neighbour.NAME
def make_dataset(worker_index, num_workers): return []
def loss(labels, outputs): return 0.0
"""


def written(folder: Path, source: str) -> Path:
    (folder / "neighbour.py").write_text("NAME = 'next door'")
    path = folder / "model.py"
    path.write_text(source)
    return path


def test_a_whole_file_is_loaded_and_may_import_its_neighbours(tmp_path: Path) -> None:
    file = modelfile.load(written(tmp_path, WHOLE))
    assert file.build_model() == "next door"
    assert file.rule is None
    assert file.evaluate is None


def test_every_function_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        modelfile.load(written(tmp_path, "def build_model(): pass"))
    assert "no make_dataset(worker_index, num_workers) and no loss(labels, outputs)" in str(caught.value)
    assert "model.py" in str(caught.value)


def test_what_is_no_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"rule: invalid input: got str, expected a function"):
        modelfile.load(written(tmp_path, WHOLE + "rule = 'adam'"))


def test_what_is_no_python_file_is_refused_before_it_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"ends in \.py"):
        modelfile.check(tmp_path / "model.txt")
    with pytest.raises(SyntaxError):
        modelfile.check(written(tmp_path, "def build_model(:"))


@pytest.mark.parametrize(
    ("returned", "means"),
    [
        ("0.5", {"result": 0.5}),
        ("{'accuracy': np.float32(0.5), 'n': 3}", {"accuracy": 0.5, "n": 3.0}),
        ("np.array(2.0)", {"result": 2.0}),
    ],
)
def test_evaluate_returns_a_number_or_numbers_by_name(tmp_path: Path, returned: str, means: dict[str, float]) -> None:
    file = modelfile.load(written(tmp_path, f"import numpy as np\n{WHOLE}\ndef evaluate(model): return {returned}"))
    assert file.evaluated(None) == means


@pytest.mark.parametrize("returned", ["None", "'good'", "{'accuracy': None}", "np.zeros(2)"])
def test_anything_else_is_refused(tmp_path: Path, returned: str) -> None:
    file = modelfile.load(written(tmp_path, f"import numpy as np\n{WHOLE}\ndef evaluate(model): return {returned}"))
    with pytest.raises(InvalidInput, match=r"evaluate\(model\)"):
        file.evaluated(None)
