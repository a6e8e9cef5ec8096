#!/usr/bin/env bash
# tests/traffic/clients/run.sh FOLDER: the streams of the cases, read by the official clients in an environment of their own in FOLDER
# (110 MB), as the prober does not need them. What is there already is kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
folder=$1
tools/python.sh "${PYTHON:-python3}"
if [ ! -e "$folder/installed" ]; then
    "${PYTHON:-python3}" -m venv --clear "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check "openai>=3" "anthropic>=2"
    touch "$folder/installed"
fi
PYTHONPATH=$PWD exec "$folder/bin/python" tests/traffic/clients/check.py
