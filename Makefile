# Two commands on a fresh machine: `make demo` and `make test`. Everything is installed into .venv, nothing elsewhere.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: install demo test check bench protos clean

install: $(INSTALLED)

# pip's own progress stays visible: TensorFlow is a large download.
$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[tensorflow-cpu,fast,examples,lab,test,check]'
	touch $@

demo: install
	$(BIN)/ps-run -n 2 -s 2 -- $(BIN)/ps-worker examples/digits.py --epochs 8 --batch-size 32 --require accuracy=0.95

test: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHON=$(BIN)/python sh protos/generate.sh --check

# Twenty minutes, on a machine that does nothing else. `make bench BENCH=--quick` is a look at whether it works.
# The peers come with `.venv/bin/pip install -e '.[bench]'`; without them the table says who is missing.
BENCH ?= --json bench.json
bench: install
	$(BIN)/python -m benchmarks.vs_tf_pss $(BENCH)

# Regenerates the messages after a change of the .proto file.
protos: install
	PYTHON=$(BIN)/python sh protos/generate.sh

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
