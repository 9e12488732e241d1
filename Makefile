# The two commands: `make book` and `make test`. Each makes its own environment first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
PEERS := .venv/.peers
PIP := $(BIN)/pip install --disable-pip-version-check --constraint constraints.txt
# Two commands at once must not install into each other, nor share a type checker's cache.
LOCKED = $(PYTHON) -c 'import fcntl, subprocess, sys; f = open(".venv.lock", "w"); fcntl.flock(f, fcntl.LOCK_EX); sys.exit(subprocess.call(sys.argv[1:]))'

.PHONY: book published test test-newest dist pytest lint clean

book: $(READY)
	$(BIN)/gradtricks book

# What takes hours or measures time: the records are kept in experiments/published/, and the book shows those.
# SWEEPS names the files of some sweeps; without it, all of them are run.
published: $(READY) $(PEERS)
	$(BIN)/gradtricks publish $(SWEEPS)

# Tests wait for processes now and then, which leaves time for the type checker.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

# It runs itself with each framework in turn, and ends with what was skipped.
pytest: $(READY)
	$(BIN)/pytest --numprocesses 2 --dist worksteal --cov

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(LOCKED) $(BIN)/mypy

# The newest releases of everything, in an environment beside .venv: surprises come to us before they come to users.
# A warning is an error there only where a call of ours causes it.
NEWEST := .venv-newest
test-newest:
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/pip install --disable-pip-version-check --quiet --upgrade --upgrade-strategy eager \
		--editable '.[torch,tensorflow,lab,dev]'
	$(NEWEST)/bin/python -c 'import importlib.metadata as m; \
		print(*(f"{n} {m.version(n)}" for n in ("torch", "tensorflow", "keras", "numpy", "numba")), sep=", ")'
	$(NEWEST)/bin/pytest --numprocesses 2 --dist worksteal -o 'filterwarnings=error:::gradtricks' tests/tricks tests/doctor

# A wheel and an sdist for the index, but not of a project that doesn't say where it lives.
dist:
	@grep -q '^\[project.urls\]' pyproject.toml || { echo "expected the project's address; got no [project.urls] in \
	pyproject.toml; remedy: write Documentation and Repository there"; exit 2; }
	$(PYTHON) -m venv --clear .venv-dist
	.venv-dist/bin/pip install --disable-pip-version-check --quiet build
	rm -rf dist
	.venv-dist/bin/python -m build --outdir dist

clean:
	rm -rf _build book/experiments

$(READY): pyproject.toml constraints.txt
	@$(LOCKED) $(MAKE) --no-print-directory install

.PHONY: install
install:
	@if [ ! -f $(READY) ] || [ pyproject.toml -nt $(READY) ] || [ constraints.txt -nt $(READY) ]; then \
		echo "First .venv gets some 220 packages, 5 GB, once, in about 3 minutes. Below pip says what it is" && \
		echo "at; after the last download it is silent for a minute or two, while it unpacks them." && \
		start=$$(date +%s) && \
		$(PYTHON) -m venv .venv && \
		$(PIP) --editable '.[torch,tensorflow,lab,optuna,book,dev]' && \
		touch $(READY) && \
		echo "That took $$(( $$(date +%s) - start )) s."; \
	fi

# What the benchmarks are measured against. torchsort is compiled here, and wants CUDA wherever it finds nvcc: hence the
# short PATH. JAX stands apart, because Keras imports it wherever it can. Without them the benchmarks say so and go on.
$(PEERS): $(READY)
	@$(LOCKED) $(MAKE) --no-print-directory peers

.PHONY: peers
peers:
	@if [ ! -f $(PEERS) ] || [ $(READY) -nt $(PEERS) ]; then \
		PATH=/usr/bin:/bin $(PIP) --no-build-isolation --no-deps torchsort \
			|| echo "The benchmarks go on without torchsort."; \
		$(PIP) --no-deps --target .venv/peers --upgrade optax mctx chex jax jaxlib opt_einsum \
			|| echo "The benchmarks go on without optax and mctx."; \
		touch $(PEERS); \
	fi
