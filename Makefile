# `make help` lists the targets. Everything runs in .venv, which is made on first use and brought
# up to date whenever pyproject.toml changes.

PYTHON ?= python3.11
BIN := .venv/bin
# setuptools warns of every editable installation; that one is meant.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip

.DEFAULT_GOAL := help
.PHONY: help install browser demo docs notebooks test test-quick test-oldest test-beam test-installs lint format clean
.DELETE_ON_ERROR:

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "make %-13s %s\n", $$1, $$2}'

install: .venv/ready_for_all  ## Make .venv ready for everything in the repository

demo: .venv/ready_to_run  ## Text to a pre-trained BERT in minutes, once installed (DEMO_FLAGS="--corpus PATH")
	$(BIN)/python -m official_bert.demo $(DEMO_FLAGS)

# All peers are installed, so no test may be skipped because one is missing.
test test-quick: export LAMB_TF_ALL_PEERS = 1

# All cores. The tests of a file share what they train, so they run together: in one process, forked
# for them (tests/support/forked_files.py).
PARALLEL := --numprocesses=auto --dist=loadfile --no-loadscope-reorder

test: .venv/ready_for_all  ## Run every test on all cores (PYTEST_FLAGS="-k lamb", or "-n 0" for one process)
	$(BIN)/python -m pytest $(PARALLEL) $(PYTEST_FLAGS)

test-quick: .venv/ready_for_all  ## Run the tests that take seconds
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow" $(PYTEST_FLAGS)

# Old libraries exit on the XLA flags that tests/conftest.py sets.
test-oldest: .venv-oldest/ready  ## Test the optimizers with the oldest libraries that they accept
	XLA_FLAGS= .venv-oldest/bin/python -m pytest $(PARALLEL) -m "not slow" $(OLDEST_TESTS) $(PYTEST_FLAGS)

test-beam: .venv/ready_for_all .venv-beam/ready  ## Test building with Apache Beam, in an environment of its own
	BEAM_PYTHON=.venv-beam/bin/python $(BIN)/python -m pytest -n 0 tests/data/test_build_with_beam.py

browser:  ## Install Chromium for the tests of pages (root on Debian or Ubuntu)
	@if command -v chromedriver > /dev/null; then echo "a browser is there"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
		--no-install-recommends chromium chromium-driver) \
		|| echo "no browser could be installed: tests of pages will be skipped"; \
	else echo "not root, or no apt-get: tests of pages will be skipped"; fi

docs: .venv/ready_for_docs  ## Build the documentation as a site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "To read it: $(BIN)/python -m http.server --directory build/site, and open http://localhost:8000"

notebooks: .venv/ready_for_all  ## Run the notebooks of docs/notebooks and keep their outputs
	$(BIN)/python docs/run_notebooks.py

test-installs: .venv/ready_for_all  ## Test the wheel in clean environments (INSTALLS="--only=NAME")
	$(BIN)/python benchmarks/install_matrix.py --tests="$(OLDEST_TESTS)" $(INSTALLS)

lint: .venv/ready_for_all  ## Check style, format and types, change nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready_for_all  ## Fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove everything that these targets made, .venv too (demo_output stays)
	rm -rf .venv .venv-oldest .venv-beam build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is touched last, so an interrupted installation is resumed.
.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/ready_to_run: pyproject.toml setup.py | .venv/bin/python
	@echo "Installing TensorFlow, Keras and what the demo needs into .venv: takes minutes, prints nothing."
	$(PIP) install --quiet --editable ".[bert,cpu,plot]"
	touch $@

.venv/ready_for_docs: pyproject.toml setup.py | .venv/bin/python
	$(PIP) install --quiet --editable ".[docs]"
	touch $@

# JAX's compiler for GPUs, in a separate folder: installed without CUDA, it would log an error on
# every start of JAX.
GPU_COMPILER := $(BIN)/python -c "import jax; v = jax.__version__; print(f'jax-cuda13-plugin=={v} jax-cuda13-pjrt=={v}')"

.venv/ready_for_all: pyproject.toml setup.py | .venv/bin/python
	@echo "Installing all packages, the peers too, into .venv: about 5 GB, takes minutes, prints nothing."
	$(PIP) install --quiet "pip>=25.1"  # which knows --group; a .venv of your own may have an older one
	$(PIP) install --quiet --editable ".[bert,cpu,plot,tensorboard,zstd,parquet,export,docs,test,rehearse]"
	$(PIP) install --quiet --no-deps --group peers
	$(PIP) install --quiet --no-deps --upgrade --target .venv/gpu-compiler $$($(GPU_COMPILER))
	touch .venv/ready_to_run .venv/ready_for_docs $@

# No extra but [cpu]: it also shows that the optimizers need nothing of [bert].
OLDEST_TESTS := $(addprefix tests/lamb_tf/test_,$(addsuffix .py,optimizers lamb lars orscale layerwise selection multipliers loss_scale \
	float8 master_weights schedules telemetry gradient_noise replicas optional_dependencies))

.venv-oldest/ready: pyproject.toml setup.py tests/support/oldest_versions.py
	$(PYTHON) -m venv --clear .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	PYTHONWARNINGS=ignore .venv-oldest/bin/python -m pip install --quiet --editable ".[cpu]" \
		$$($(PYTHON) tests/support/oldest_versions.py) "pytest>=8.4" "pytest-xdist>=3.6"
	touch $@

# Beam needs older versions of protobuf and pyarrow than TensorFlow.
.venv-beam/ready: pyproject.toml setup.py
	$(PYTHON) -m venv --clear .venv-beam
	PYTHONWARNINGS=ignore .venv-beam/bin/python -m pip install --quiet --editable ".[bert,beam,jax]"
	touch $@
