#!/usr/bin/env bash
# tools/packages.sh PROGRAM[:PACKAGE]...: installs the distribution's packages of the programs that are missing here, as root or by
# sudo. Where that is not possible it fails, and names them.
set -euo pipefail
packages=()
for name; do command -v "${name%%:*}" >/dev/null || packages+=("${name#*:}"); done
[ ${#packages[@]} -gt 0 ] || exit 0
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo -n)
if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
    echo "Installing ${packages[*]}…"
    "${as_root[@]}" apt-get -qq update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends "${packages[@]}" >/dev/null &&
        exit 0
fi
echo "missing here: ${packages[*]}; install them (apt-get install ${packages[*]}), then run this again" >&2
exit 1
