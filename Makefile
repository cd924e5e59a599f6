# The commands of this project. CI calls the same ones (.ci/run).
#   make install   build .venv from the pinned requirements (the others do it themselves)
#   make demo      run the demonstration             ARGS="..." is passed on
#   make test      run the tests                     ARGS="tests/core -k name"
#   make proof     run the long campaigns            ARGS="-k name"
#   make steadiness  run the tests again and again, some beside busy loops   ARGS="--runs 10"
#   make check     format, lint, types (the code of the pages too), import directions, generated files
#   make bench     run the benchmarks                ARGS="..." is passed on
#                  ARGS="--quick" a few cases, ARGS="--peers --save" all, kept in bench/results
#   make pins      resolve requirements/*.in again (needs uv)
#   make clean     remove .venv and caches

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-bench
# Warnings of pip are chatter here; its errors are shown.
PIP_INSTALL = -m pip install -qq --disable-pip-version-check

.PHONY: install demo test proof steadiness check check-mypy check-pyright check-style snippets bench pins clean
.DEFAULT_GOAL := install

install: $(VENV)/.test

# A stamp is written last: an interrupted install is done again.
$(VENV)/.demo: requirements/demo.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || \
	  { echo "semel: '$(PYTHON)' not found; install Python 3.11 or newer, or run: make install PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "semel: needs Python 3.11 or newer, '$(PYTHON)' is $$($(PYTHON) --version 2>&1); run: make install PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "semel: '$(PYTHON)' cannot build virtual environments; install its venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "semel: building $(VENV) for the demo"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP_INSTALL) -r requirements/demo.txt
	@$(BIN)/python $(PIP_INSTALL) --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.test: requirements/test.txt $(VENV)/.demo
	@echo "semel: adding what tests and checks need to $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) -r requirements/test.txt
	@touch $@

demo: $(VENV)/.demo
	@$(BIN)/semel demo $(ARGS)

# Most tests wait for processes and databases, so there are more of them than cores; a file stays
# together.
test: install
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

# An hour for ten runs. Not on a machine that does something else.
steadiness: install
	@$(BIN)/python -m bench.steadiness $(ARGS)

# Two hours on two cores: campaigns that kill, race and fill up. Each is told when it ends, figures
# at the end.
proof: install
	$(BIN)/pytest -m proof -n 2 --dist loadfile --no-loadscope-reorder -vv $(ARGS)

check: install
	@$(MAKE) --no-print-directory --jobs=2 check-mypy check-pyright check-style

# The code of the pages is checked beside the rest, in the same run.
check-mypy: snippets
	$(BIN)/mypy src tests bench examples tools build/snippets
check-pyright: snippets
	$(BIN)/basedpyright --warnings src examples tests/types build/snippets
snippets:
	$(BIN)/python -m tools.snippets
check-style:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tools.twins --check
	$(BIN)/python -m tools.queries --check
	$(BIN)/pytest tests/unit/test_layout.py

# The packages semel is compared with have an environment of their own, built when asked for.
bench: install
	@case " $(ARGS) " in *" --peers "*) $(MAKE) --no-print-directory $(PEERS)/.installed;; esac
	$(BIN)/python -m bench $(ARGS)

$(PEERS)/.installed: requirements/bench.txt
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python $(PIP_INSTALL) -r $<
	@touch $@

# No header and no index options: the file must read the same wherever it was resolved.
pins:
	for name in test demo bench; do \
	  uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-header \
	    --no-emit-index-url --no-emit-find-links --annotation-style=line \
	    requirements/$$name.in --output-file requirements/$$name.txt || exit; \
	done

clean:
	rm -rf $(VENV) $(PEERS) build .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
