#!/usr/bin/env bash
# tools/debian.sh DIR SUITE PACKAGE...: the distribution's own packages, unpacked into DIR; of SUITE (say, trixie), or of the
# system's own suites where SUITE is empty. A package that the suite has not is passed over. src:NAME is the source of NAME, with
# the distribution's patches, in DIR/src/NAME; it needs a SUITE.
# They are fetched and unpacked, not installed: no root, no service started, the system and apt's lists untouched.
set -euo pipefail
mkdir -p "$1"
dir=$(cd "$1" && pwd)
suite=$2
shift 2

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
    echo "no apt-get here: put what is in $* on the PATH to run the tests that need it" >&2
    exit 1
}
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir -p "$state"/{lists/partial,cache/archives/partial,debs}
# Without the system's status an installed package of a newer version, from wherever, would be the candidate.
apt=(apt-get -qq -o Dir::State::lists="$state/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$state/cache"
    -o APT::Sandbox::User="$(id -un)")
if [ -n "$suite" ]; then
    # The mirror and the key that the system itself uses.
    sources=/etc/apt/sources.list.d/debian.sources
    [ -r "$sources" ] || { echo "no $sources here: $suite cannot be had" >&2; exit 1; }
    mirror=$(awk '/^URIs:/{print $2; exit}' "$sources")
    keyring=$(awk '/^Signed-By:/{print $2; exit}' "$sources")
    for kind in deb deb-src; do echo "$kind [signed-by=$keyring] $mirror $suite main"; done >"$state/sources.list"
    apt+=(-o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=-)
fi

"${apt[@]}" update
cd "$state/debs"
for package; do
    case $package in
    src:*)
        "${apt[@]}" source --download-only "${package#src:}"
        mkdir -p "$dir/src"
        dpkg-source -q --no-check -x ./*.dsc "$dir/src/${package#src:}" # apt has checked it
        rm ./*.dsc ;;
    *) "${apt[@]}" download "$package" 2>/dev/null || true ;;
    esac
done
for deb in *.deb; do dpkg-deb -x "$deb" "$dir"; done
