# One-line help for every target: make help
.DEFAULT_GOAL := help
.PHONY: help setup test lint

VENV ?= .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed

help:  ## this list
	@grep -hE '^[a-z][a-zA-Z_-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 22

$(STAMP): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install -q --upgrade-strategy only-if-needed -c constraints.txt -e '.[dev]'
	touch $@

setup: $(STAMP)  ## .venv with the pinned versions

test: setup  ## the tests
	$(PYTHON) -m pytest

lint: setup  ## ruff and mypy
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy
