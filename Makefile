# Every target makes the environment that it needs: Python 3.11 or newer with venv and pip is enough.
# Where uv is installed it does the same in a tenth of the time.

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

.PHONY: demo test test-interpreted lint bench fuzz wheel docs clean

demo: $(VENV)/.installed
	$(BIN)/tensorglot demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto

# The same tests on the kernels as plain Python.
test-interpreted: $(VENV)/.test
	TENSORGLOT_KERNELS=interpreted $(BIN)/python -m pytest -n auto

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

COUNT ?= 200000
fuzz: $(VENV)/.test
	for target in $(filter-out fuzz/campaign.py,$(wildcard fuzz/*.py)); do $(BIN)/python $$target $(COUNT) || exit 1; done

# One wheel for Python 3.11 and newer and a pure one, in dist/, each tested in a clean environment.
wheel: $(VENV)/.wheels
	bash .ci/wheels $(BIN)/python dist

# The documentation, in site/. A broken link is an error.
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict --quiet

$(VENV)/.installed: pyproject.toml setup.py $(KERNELS)
	$(CREATE)
	$(INSTALL) --editable .
	touch $@

# What an extra of pyproject.toml asks for, without building the package again.
REQUIREMENTS = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$*"])
$(VENV)/.%: $(VENV)/.installed
	$(INSTALL) $$($(BIN)/python -c '$(REQUIREMENTS)')
	touch $@

clean:
	rm -rf $(VENV) build dist site src/*.egg-info src/tensorglot/kernels/*.so
