#!/usr/bin/env bash
# tests/engines/run.sh DIR [pytest arguments]: installs real engines into DIR where they are not, and probes them.
# Each test prints what it saw as one line of JSON. Ten minutes beside the installation: vLLM takes two to start on a CPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tests/engines/install.sh "$1"
ENGINES_DIR=$(cd "$1" && pwd)
export ENGINES_DIR
shift
exec .venv/bin/pytest --override-ini=timeout=0 tests/engines/test_real_engines.py "$@"
