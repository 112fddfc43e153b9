# `make demo` and `make test` work alone on a fresh machine: each sets up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Not in the lock, which would pin the gigabytes of CUDA that PyPI's build asks for also where a CPU build is at hand.
# Where there is no build of it, or with `make test TORCH=`, the tests that need it are skipped and say so.
TORCH ?= torch==2.13.0
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: setup demo test golden browser check lint types bench bench-scale mutants torture lock licences clean

setup: $(READY)
	@echo "installed; activate it with: . $(BIN)/activate"

$(READY): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --no-deps -r requirements.lock
	$(if $(TORCH),$(PIP) "$(TORCH)" || echo "no build of $(TORCH) for this machine: the tests that need it will be skipped")
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $(READY)

demo: $(READY)
	$(BIN)/gristmill demo --output-dir demo-output

# Two files at a time, but one server (tests/conftest.py): half of the time is waiting for processes.
test: $(READY) browser
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup

# Records what runs give now; refuses where values changed and the format version did not (tests/golden).
golden: $(READY)
	PYTHONPATH=tests $(BIN)/python -m golden.update

# Debian's Chromium, which the end-to-end tests drive; without it, and without the right to install it, they say so.
browser:
	@command -v chromium > /dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null; }

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# What CI runs; the tests come last, so that their summary closes the output.
check: lint types test

bench: $(READY)
	$(BIN)/python -m benchmarks

# What 20,000 parts and 2,000 shards cost the process that drives a run: half an hour, 1 GB below TMPDIR.
bench-scale: $(READY)
	$(BIN)/python -m benchmarks.scale --parts 20000 --shards 2000

# Are there tests that notice? Small faults go into the kernels, one at a time, in a copy of the checkout, and their
# tests run: about an hour for all. `make mutants MODULE=masks` for one, SAMPLE=0 for every fault (default 40 a module).
SAMPLE ?= 40
mutants: $(READY)
	$(BIN)/python tests/mutation --sample $(SAMPLE) $(if $(MODULE),--module $(MODULE))

# Does anything break a run? Kills, faults, damage and hostile input for so many minutes; as root, on small disks too.
# `make torture ONLY=kills,damages` for some kinds; each failure names the command that repeats it.
SEED ?= 0
MINUTES ?= 60
torture: $(READY)
	PYTHONPATH=tests $(BIN)/python -m torture --seed $(SEED) --minutes $(MINUTES) $(if $(ONLY),--only $(ONLY))

# Needs `uv` on the PATH.
lock:
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-header --no-annotate --output-file requirements.lock
	sed -i '1i # Every package the checks run with, for Python 3.11 to 3.13. `make lock` writes this file anew.' requirements.lock

# After `make lock` and `make setup`: writes docs/licences.md from what is installed.
licences: $(READY)
	PYTHONPATH=tests $(BIN)/python -m supply.licences

clean:
	rm -rf $(VENV) demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
