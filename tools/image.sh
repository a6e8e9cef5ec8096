#!/usr/bin/env bash
# tools/image.sh [--base IMAGE] TAG: builds the image of the Dockerfile with Docker, Podman or buildah, whichever is there.
# Without --base, where the recipe's own base can be neither found nor pulled, it makes one of this Debian's Python, with
# debootstrap (as root), and says so; the image is then as good for trying, but it is not the one that is shipped.
set -euo pipefail
usage="usage: tools/image.sh [--base IMAGE] TAG"
base=
[ "${1:-}" != --base ] || { base=${2:?$usage}; shift 2; }
tag=${1:?$usage}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if docker info >/dev/null 2>&1; then builder=docker
elif command -v podman >/dev/null; then builder=podman
elif command -v buildah >/dev/null; then builder=buildah
else echo "nothing to build an image with: install podman (or buildah), or start Docker" >&2; exit 1; fi
export BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot} # works within a container too; what the recipe runs is our own

made=
if [ -z "$base" ]; then
    base=$(sed -n 's/^ARG BASE=//p' Dockerfile)
    if ! "$builder" inspect "$base" >/dev/null 2>&1 && ! "$builder" pull "$base" >/dev/null 2>&1; then
        command -v debootstrap >/dev/null && [ "$(id -u)" = 0 ] || {
            echo "$base cannot be pulled: give another --base, or run this as root with debootstrap installed" >&2; exit 1; }
        suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
        echo "NOT THE RECIPE'S BASE: $base cannot be pulled; building on this system's Python, of $suite by debootstrap"
        base=localhost/debootstrap-python:$suite
        if ! "$builder" inspect "$base" >/dev/null 2>&1; then
            made=$(mktemp -d)
            trap 'rm -rf --one-file-system "$made"' EXIT
            mirror=$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/"$(. /etc/os-release && echo "$ID")".sources 2>/dev/null || true)
            debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv \
                "$suite" "$made/root" ${mirror:+"$mirror"} >"$made/log" 2>&1 || { tail -5 "$made/log" >&2; exit 1; }
            ln -sf python3 "$made/root/usr/bin/python"
            rm -rf "$made/root"/var/{cache/apt,lib/apt/lists,log}
            printf 'FROM scratch\nCOPY root /\nENV PATH=/usr/local/bin:/usr/bin:/usr/sbin\n' >"$made/Dockerfile"
            "$builder" build --quiet --layers=false --tag "$base" "$made" >/dev/null
        fi
    fi
fi

epoch=$(git log -1 --format=%ct)
created=$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ)
revision=$(git rev-parse HEAD)$(git diff --quiet HEAD || echo +changes)
options=(--build-arg "BASE=$base" --build-arg "SOURCE_DATE_EPOCH=$epoch" --build-arg "CREATED=$created"
    --build-arg "REVISION=$revision" --tag "$tag")
if [ "$builder" = docker ]; then
    SOURCE_DATE_EPOCH=$epoch docker build "${options[@]}" .
else
    [ -z "${PIP_CERT:-}" ] || options+=(--volume "$PIP_CERT:/run/pip.crt:ro" --build-arg PIP_CERT=/run/pip.crt)
    # Docker's format, since the other has no health check.
    "$builder" build --format docker --timestamp "$epoch" --layers=false --force-rm "${options[@]}" .
fi
echo "built $tag with $builder on $base, of $revision"
