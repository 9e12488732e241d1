# The two commands: `make book` and `make test`. Each makes its own environment first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
# Two commands at once must not install into each other, nor share a type checker's cache.
LOCKED = $(PYTHON) -c 'import fcntl, subprocess, sys; f = open(".venv.lock", "w"); fcntl.flock(f, fcntl.LOCK_EX); sys.exit(subprocess.call(sys.argv[1:]))'

.PHONY: book test lint clean

book: $(READY)
	$(BIN)/gradtricks book

test: lint
	$(BIN)/pytest

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
		$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[torch,tensorflow,lab,book,dev]' && \
		touch $(READY); \
	fi
