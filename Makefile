# The two commands: `make book` and `make test`. Each makes its own environment first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
PEERS := .venv/.peers
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Two commands at once must not install into each other, nor share a type checker's cache.
LOCKED = $(PYTHON) -c 'import fcntl, subprocess, sys; f = open(".venv.lock", "w"); fcntl.flock(f, fcntl.LOCK_EX); sys.exit(subprocess.call(sys.argv[1:]))'

.PHONY: book published test lint clean

book: $(READY) $(PEERS)
	$(BIN)/gradtricks book

# The sweeps that take hours: their records are kept in experiments/published/, and the book shows those.
published: $(READY)
	$(BIN)/gradtricks publish

test: lint
	$(BIN)/pytest --numprocesses 2 --cov

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(LOCKED) $(BIN)/mypy

clean:
	rm -rf _build book/experiments

$(READY): pyproject.toml constraints.txt
	@$(LOCKED) $(MAKE) --no-print-directory install

.PHONY: install
install:
	@if [ ! -f $(READY) ] || [ pyproject.toml -nt $(READY) ] || [ constraints.txt -nt $(READY) ]; then \
		echo "Setting up .venv: this happens once and takes a few minutes."; \
		$(PYTHON) -m venv .venv && \
		$(PIP) --editable '.[torch,tensorflow,lab,optuna,mlflow,book,dev]' && \
		touch $(READY); \
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
