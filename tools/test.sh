#!/usr/bin/env bash
# tools/test.sh PYTEST [ARGS...]: PYTEST with ARGS; without any every test that is not marked slow, several at a time. Tests that
# start the prober as a process come last, when no other test takes their processor time: they wait more than they compute.
set -euo pipefail
pytest=$1
shift
[ $# -eq 0 ] || exec "$pytest" "$@"

echo "Running the tests: about 8 minutes on two idle processors. \`make test-slow\` runs those that take longer."
unset PYTHONDONTWRITEBYTECODE # each prober that a test starts would compile itself for a second
waiting=(tests/e2e tests/faults)
options=(-m "not slow" --durations 10 --max-worker-restart 0) # a worker that ends stops the run: with a new one it can wait for ever
failed=0
"$pytest" --numprocesses 3 --dist worksteal "${options[@]}" "${waiting[@]/#/--ignore=}" || failed=$?
"$pytest" --numprocesses 6 "${options[@]}" --no-loadscope-reorder "${waiting[@]}" || failed=$?
exit "$failed"
