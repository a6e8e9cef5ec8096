#!/usr/bin/env bash
# tools/chromium.sh: a browser for the tests that open pages. Installed only in CI, and only as root: it is many packages, and on
# anybody's own machine what is installed is theirs to say.
set -euo pipefail
[ "${CI:-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 1
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium >/dev/null
