# make help lists the targets.
.DEFAULT_GOAL := help
VENV ?= .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
GRID ?= demo
STUDY ?= results/$(GRID)
JOBS ?= $(shell env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null || echo 2)
LAUNCHER ?= local
RUNS ?= runs
PORT ?= 5000
export MLFLOW_DISABLE_TELEMETRY := true

STUDY_STAGES := table fits multipliers figures report
.PHONY: help setup reproduce test test-slow test-faults test-services test-slurm lint format plan sweep status sync prune export \
  $(STUDY_STAGES) paper quotes bench ui clean

help:  ## this list
	@grep -hE '^[a-z][a-zA-Z _-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 24

$(INSTALLED): pyproject.toml constraints.txt
	@echo "installing into $(VENV) (two minutes on a fresh machine)"
	@python3 -m venv $(VENV)
	@$(VENV)/bin/pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(INSTALLED)  ## .venv with the pinned versions

reproduce: setup  ## the main job: train the demo grid, fit, report (25 minutes on two cores; again: nothing is retrained)
	@$(PYTHON) -m sweeps run demo --jobs $(JOBS) --runs $(RUNS); code=$$?; \
	if [ $$code -gt 1 ]; then exit $$code; fi; \
	$(PYTHON) -m analysis table --study results/demo --runs $(RUNS) && \
	$(PYTHON) -m analysis report --study results/demo && exit $$code

test: setup  ## the tests (at most ten minutes on two cores)
	@OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m 'not slow and not faults and not slurm and not services' -n $(JOBS) --dist loadfile \
	  tests/sweeps tests/experiments tests  # the longest files first, so that no core waits for one at the end

test-slow: setup  ## the long suites: coverage of the intervals, compiled steps, hashes of fetched data
	@$(PYTHON) -m pytest -m slow --timeout 3600

test-faults: setup  ## kills at random moments, full and read-only disks, damaged files, jumping clocks, lost stores (a quarter of an hour; as root for the disks)
	@seed=$${FAULTS_SEED:-$$(date +%s)}; echo "FAULTS_SEED=$$seed repeats these moments"; \
	OMP_NUM_THREADS=1 FAULTS_SEED=$$seed $(PYTHON) -m pytest -m faults -n $(JOBS) --dist load --timeout 1800

test-services: setup  ## sweeps on PostgreSQL (installed from Debian's packages if it is missing) and on an MLflow server, lost in mid-run
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || { apt-get update -qq && \
	  apt-get install -y -qq --no-install-recommends postgresql; } >/dev/null
	@$(VENV)/bin/pip install -q -c constraints.txt -e '.[dev,postgres]'
	@OMP_NUM_THREADS=1 $(PYTHON) -m pytest tests/services -m services --timeout 1800

test-slurm: setup  ## the launcher on a real Slurm, installed from Debian's packages if it is missing (a quarter of an hour)
	@PATH="$$PATH:/usr/sbin:/sbin"; for program in slurmctld slurmd sbatch munged; do command -v $$program; done \
	  | wc -l | grep -qx 4 || { apt-get update -qq && \
	  apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge; } >/dev/null
	@$(PYTHON) -m pytest -m slurm --timeout 2400

lint: setup  ## ruff and mypy
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy

format: setup  ## let ruff format and sort
	@$(VENV)/bin/ruff check --fix-only . && $(VENV)/bin/ruff format .

plan: setup  ## GRID=...: what would be trained, what is done, what it costs
	@$(PYTHON) -m sweeps plan $(GRID) --jobs $(JOBS) --runs $(RUNS)

sweep: setup  ## GRID=... [JOBS=n] [LAUNCHER=slurm SITE=site.toml]: train what is missing
	@$(PYTHON) -m sweeps run $(GRID) --jobs $(JOBS) --launcher $(LAUNCHER) $(if $(SITE),--site $(SITE)) --runs $(RUNS)

status: setup  ## GRID=...: cells finished, failed, running, missing
	@$(PYTHON) -m sweeps status $(GRID) --runs $(RUNS)

sync: setup  ## GRID=...: rebuild the MLflow store from the run directories
	@$(PYTHON) -m sweeps sync $(GRID) --runs $(RUNS)

prune: setup  ## GRID=...: drop the checkpoints of finished cells
	@$(PYTHON) -m sweeps prune $(GRID) --runs $(RUNS)

export: setup  ## GRID=...: the study and its runs as one archive, GRID.tar.gz
	@$(PYTHON) -m sweeps export $(GRID) --runs $(RUNS)

table: setup  ## STUDY=results/...: run records -> runs.csv, curves.parquet
	@$(PYTHON) -m analysis table --study $(STUDY) --runs $(RUNS)

fits multipliers figures report: setup  ## STUDY=results/...: one stage of the analysis, from runs.csv
	@$(PYTHON) -m analysis $@ --study $(STUDY)

paper: setup  ## the published numbers through the same analysis -> results/paper; then quotes
	@$(PYTHON) -m analysis paper
	@$(MAKE) --no-print-directory quotes

quotes: setup  ## fill the marked numbers in README.md and docs/ from the committed results (the tests refuse stale ones)
	@$(PYTHON) -m analysis quotes README.md $(wildcard docs/*.md docs/decisions/*.md)

bench: setup  ## speed and memory: interleaved ratios with their bars, written to runs/bench.json
	@$(PYTHON) -m benchmarks

ui: setup  ## MLflow on loopback [PORT=5000]
	@$(PYTHON) -m experiments ui --runs $(RUNS) --port $(PORT)

clean:  ## remove caches and the made-up smoke study; runs, data and studies stay
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis results/smoke
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
