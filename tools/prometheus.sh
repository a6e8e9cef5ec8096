#!/usr/bin/env bash
# tools/prometheus.sh DIR [SUITE]: puts the distribution's own prometheus, promtool, alertmanager and amtool into DIR/usr/bin;
# with SUITE (say, sid) those of that suite of the same distribution.
# The packages are fetched and unpacked, not installed: no root, no service started, the system and apt's lists untouched.
set -euo pipefail
mkdir -p "$1"
dir=$(cd "$1" && pwd)
suite=${2:-}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
    echo "no apt-get here: put prometheus, promtool and alertmanager on the PATH to run the tests that need them" >&2
    exit 1
}
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir -p "$state"/{lists/partial,cache/archives/partial,debs}
apt=(apt-get -qq -o Dir::State::lists="$state/lists" -o Dir::Cache="$state/cache" -o APT::Sandbox::User="$(id -un)")
if [ -n "$suite" ]; then
    # The mirror and the key that the system itself uses.
    sources=/etc/apt/sources.list.d/debian.sources
    [ -r "$sources" ] || { echo "no $sources here: $suite cannot be had" >&2; exit 1; }
    mirror=$(awk '/^URIs:/{print $2; exit}' "$sources")
    keyring=$(awk '/^Signed-By:/{print $2; exit}' "$sources")
    echo "deb [signed-by=$keyring] $mirror $suite main" >"$state/sources.list"
    apt+=(-o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=-)
fi

"${apt[@]}" update
cd "$state/debs"
for package in prometheus promtool prometheus-alertmanager; do
    "${apt[@]}" download "$package" 2>/dev/null || true # promtool is a package of its own in newer releases only
done
for deb in *.deb; do dpkg-deb -x "$deb" "$dir"; done
# The distribution calls it prometheus-alertmanager.
[ -x "$dir/usr/bin/alertmanager" ] || ln -sf prometheus-alertmanager "$dir/usr/bin/alertmanager"
"$dir/usr/bin/prometheus" --version 2>&1 | sed -n 1p
