#!/usr/bin/env bash
# tools/test.sh PYTEST [ARGS...]: PYTEST with ARGS; without any every test, in three runs side by side: tests that start the
# prober as a process mostly wait. What the other runs print is shown when the first has ended.
set -euo pipefail
pytest=$1
shift
[ $# -eq 0 ] || exec "$pytest" "$@"

waiting=(tests/e2e tests/faults)
output=$(mktemp -d)
beside=()
trap 'kill "${beside[@]}" 2>/dev/null || true; rm -rf "$output"' EXIT
for folder in "${waiting[@]}"; do
    "$pytest" -p no:cacheprovider "$folder" >"$output/${folder//\//-}" 2>&1 &
    beside+=($!)
done
failed=0
"$pytest" "${waiting[@]/#/--ignore=}" || failed=$?
for process in "${beside[@]}"; do wait "$process" || failed=$?; done
cat "$output"/*
exit "$failed"
