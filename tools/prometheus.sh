#!/usr/bin/env bash
# tools/prometheus.sh DIR: puts the distribution's own prometheus and promtool into DIR/usr/bin.
# The packages are fetched and unpacked, not installed: no root, no service started, the system and apt's lists untouched.
set -euo pipefail
mkdir -p "$1"
dir=$(cd "$1" && pwd)

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
    echo "no apt-get here: put prometheus and promtool on the PATH to run the tests that need them" >&2
    exit 1
}
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir -p "$state"/{lists/partial,cache/archives/partial}
apt=(apt-get -qq -o Dir::State::lists="$state/lists" -o Dir::Cache="$state/cache" -o APT::Sandbox::User="$(id -un)")

"${apt[@]}" update
cd "$state"
"${apt[@]}" download prometheus
dpkg-deb -x prometheus_*.deb "$dir"
if [ ! -x "$dir/usr/bin/promtool" ]; then # a package of its own in newer releases
    "${apt[@]}" download promtool
    dpkg-deb -x promtool_*.deb "$dir"
fi
"$dir/usr/bin/prometheus" --version 2>&1 | sed -n 1p
