#!/usr/bin/env bash
# tests/ray/run.sh FOLDER [ARGS]: the tests of workers on a real Ray cluster, in an environment of their own in FOLDER (400 MB), as
# Ray is not among the locked dependencies. What is there already is kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=$1
shift
tools/python.sh "${PYTHON:-python3}"
if [ ! -e "$folder/installed" ]; then
    "${PYTHON:-python3}" -m venv --clear "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
    "$folder/bin/pip" install --quiet --disable-pip-version-check "ray>=2.40"
    touch "$folder/installed"
fi
PYTHONPATH=$PWD exec "$folder/bin/pytest" -q tests/ray "$@"
