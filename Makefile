# Everything a person needs is a target here; `make` alone lists them. All set-up happens by itself.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(CURDIR)/.tools
DIR ?= $(TOOLS)/engines

.PHONY: help install demo test test-slow check generated bench audit test-cluster test-image test-engines test-ray test-clients test-node lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-14s %s\n", $$1, $$2}'

install: $(VENV)/installed ## the prober and what it is developed with, into .venv

$(VENV)/installed: requirements.lock pyproject.toml hatch_build.py prober/simulation/serving.c
	@tools/python.sh $(PYTHON)
	@echo "Installing the prober and its development tools into $(VENV) (670 MB on disk, one to three minutes, once)…"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q prober
	@touch $@

demo: install ## four mock engines, the prober, and Prometheus where there is one; runs until Ctrl-C
	@$(BIN)/python -m prober demo

test: install ## every test but the slow ones; fetches Prometheus, HAProxy, nginx, kubectl and Helm when they are not there
	@tools/parts.sh $(TOOLS) $(BIN)/python
	@PATH="$(TOOLS)/usr/bin:$$PATH" tools/test.sh $(BIN)/pytest $(ARGS)

test-slow: install ## statistical proofs and scenes of minutes, which `make test` leaves out
	@tools/parts.sh $(TOOLS) $(BIN)/python
	@PATH="$(TOOLS)/usr/bin:$$PATH" $(BIN)/pytest -m slow --numprocesses 2 --max-worker-restart 0 -o timeout=1200 $(ARGS)

check: install ## format, lint, types, layers, generated files unchanged, dashboards
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_layers.py
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m prober dashboards check
	$(BIN)/python -m tools.dashboard_lint

generated: install ## write the files that are generated from the code again
	$(BIN)/python docs/generate.py
	$(BIN)/python -m prober dashboards write

bench: install ## the measured goals; each prints one JSON object
	$(BIN)/python -m bench $(ARGS)

test-cluster: install ## the manifests, discovery and leases against a real API server; it is built first (8 minutes)
	tests/cluster/run.sh $(TOOLS)/cluster $(ARGS)

test-image: install ## the image, built and run for real; root, podman, runc (minutes; ARGS=-s says more)
	PATH="$(TOOLS)/usr/bin:$$PATH" IMAGE_DIR=$(TOOLS)/image $(BIN)/pytest -o timeout=0 tests/deploy/test_image_built.py $(ARGS)

test-engines: install ## real vLLM and llama.cpp on the CPU, probed; DIR=… keeps them (2.5 GB, minutes)
	tests/engines/run.sh $(DIR)

test-ray: ## workers on the nodes of a real Ray cluster, of which one is killed (minutes; 400 MB)
	PYTHON=$(PYTHON) tests/ray/run.sh $(TOOLS)/ray $(ARGS)

test-clients: ## the official clients of OpenAI and Anthropic read the streams that the cases of tests/traffic are about (80 MB)
	PYTHON=$(PYTHON) tests/traffic/clients/run.sh $(TOOLS)/clients

test-node: install ## image, sidecar and fleet on a real Kubernetes node, fault by fault; root; builds Kubernetes first (10 minutes, then 40)
	tests/node/run.sh $(TOOLS)/node $(ARGS)

audit: install ## known weaknesses of every locked package, by pip-audit; fails where it cannot ask
	$(BIN)/python tools/audit.py

$(TOOLS)/uv/installed: requirements.uv.lock
	@tools/python.sh $(PYTHON)
	$(PYTHON) -m venv --clear $(TOOLS)/uv
	$(TOOLS)/uv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.uv.lock
	@touch $@

lock: $(TOOLS)/uv/installed ## pin the dependencies of pyproject.toml again, with hashes (ARGS=--upgrade for newer ones)
	$(TOOLS)/uv/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet \
		--output-file requirements.lock $(ARGS)
	$(TOOLS)/uv/bin/uv pip compile pyproject.toml --extra grafana --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet \
		--constraints requirements.lock --output-file requirements.image.lock $(ARGS)
	printf "hatchling\nziglang" | $(TOOLS)/uv/bin/uv pip compile - --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet \
		--constraints requirements.lock --output-file requirements.build.lock $(ARGS)
	echo uv | $(TOOLS)/uv/bin/uv pip compile - --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet \
		--output-file requirements.uv.lock $(ARGS)

clean: ## remove what make made, but not the engines
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find prober bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
