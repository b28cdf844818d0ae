"""A run of real processes, recorded and made again: ps-run with a rule file, two ps, two workers that pull, push and leave."""

from __future__ import annotations

import json
import sys

import numpy as np

from tests.harness.processes import ROOT, Programs

TRAIN = """
import hashlib, sys
import numpy as np
import client

values = {"w": np.linspace(-1, 1, 30, dtype=np.float32).reshape(10, 3), "b": np.zeros(3, np.float32)}
with client.connect() as server:
    server.init(values)
    rng = np.random.default_rng(server.worker)
    now = server.pull()
    for _ in range(20):
        now, _ = server.push_pull({name: rng.normal(size=value.shape).astype("f") for name, value in now.items()})
    if server.worker == 0:
        np.savez(sys.argv[1], **now)
"""


def test_a_recorded_job_is_replayed_to_the_weights_that_its_workers_saw(programs: Programs) -> None:
    script, rules = programs.file(TRAIN, "train.py"), ROOT / "examples" / "custom_rule.py"
    options = ["-n", "2", "-s", "2", "--mode", "sync", "--rules", str(rules), "--rule", "signum:learning_rate=0.125"]
    command = [*options, "--record", "run.record", "--", sys.executable, str(script), "seen.npz"]
    job = programs.python("-m", "client.run", *command, name="ps-run")
    assert job.wait() == 0, job.text()
    again = programs.python(
        "-m", "ps.replay", "run.record", "--rules", str(rules), "--out", "again.npz", "--json", name="replay"
    )
    assert again.wait() == 0, again.text()
    said = json.loads(again.text("stdout"))
    assert said["version"] == [20, 20]
    assert said["rule"] == "signum:learning_rate=0.125,momentum=0.9"
    with np.load(script.parent / "seen.npz") as seen, np.load(script.parent / "again.npz") as replayed:
        assert sorted(seen) == sorted(replayed) == ["b", "w"]
        for name in seen:
            assert seen[name].tobytes() == replayed[name].tobytes()
