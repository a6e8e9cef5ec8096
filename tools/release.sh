#!/usr/bin/env bash
# tools/release.sh VERSION [--base IMAGE@sha256:…]: makes in dist/VERSION all that a release publishes, checks it, and prints what a
# person does then. It publishes nothing, and makes no tag. What is made is of the commit, not of the working tree.
# tools/release.sh --dry-run: the same in dist/dry-run, without the image, also where a release would be refused; it says why.
# `make release ARGS=…` runs it with the programs of requirements.release.lock. The image needs Docker or Podman.
set -euo pipefail
usage="usage: tools/release.sh VERSION [--base IMAGE@sha256:…] | tools/release.sh --dry-run"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$(realpath --canonicalize-missing --no-symlinks "${PYTHON:-.venv/bin/python}")               # with the prober's dependencies
packager=$(realpath --canonicalize-missing --no-symlinks "${PACKAGER:-.tools/release/bin/python}") # with requirements.release.lock
export PATH="$PWD/.tools/usr/bin:$PATH" PYTHONDONTWRITEBYTECODE=1

asked='' base='' dry=false
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry=true ;;
    --base) base=${2:?$usage}; shift ;;
    [0-9]*) asked=$1 ;;
    *) echo "$usage" >&2; exit 2 ;;
    esac
    shift
done
[ -n "$asked" ] || $dry || { echo "$usage" >&2; exit 2; }

refused=0
refuse() { # refuse WHAT: ends a release, once all reasons are listed
    if $dry; then echo "A release would be refused: $1"; else echo "refused: $1" >&2; refused=1; fi
}

# 1. What is released, and whether it may be.
command -v "$python" >/dev/null || { echo "$python is missing: make release fetches it" >&2; exit 1; }
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' prober/__init__.py)
[ -z "$asked" ] || [ "$asked" = "$version" ] ||
    refuse "prober/__init__.py has version $version, not $asked: run python -m tools.version $asked, make generated, and commit"
places=$("$python" -m tools.version) || { echo "refused: not one version: run python -m tools.version $version" >&2; echo "$places" >&2; exit 1; }
changes=$(git status --porcelain)
[ -z "$changes" ] || refuse "uncommitted changes: commit or remove them"$'\n'"$changes"
! tagged=$(git rev-parse --quiet --verify --short "refs/tags/v$version^{commit}") ||
    refuse "the tag v$version exists, of $tagged: set the next version with python -m tools.version"
heading=$(grep -n -m 1 '^## ' CHANGELOG.md || true)
[[ $heading =~ ^[0-9]+:"## $version"( |$) ]] ||
    refuse "CHANGELOG.md:${heading:-1:no heading}: the first heading has to be '## $version', with the day of the release"
[ -z "$base" ] || [[ $base == *@sha256:* ]] || refuse "--base $base: give the base of the image by its digest, IMAGE@sha256:…"
[ "$refused" = 0 ] || exit 1
for program in "$packager" helm git tar gzip cmp sha256sum; do
    command -v "$program" >/dev/null || { echo "$program is missing: make release fetches it" >&2; exit 1; }
done

revision=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
$dry && out=$PWD/dist/dry-run || out=$PWD/dist/$version
rm -rf "$out"
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

archive() { # archive FOLDER FILE NAME...: the same bytes for the same files
    tar --create --directory "$1" --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" \
        "${@:3}" | gzip --no-name --best >"$2"
}

build() { # build FOLDER: all packages of the commit in FOLDER/out, by way of FOLDER, whose name must not matter
    mkdir -p "$1/tree" "$1/out" "$1/chart"
    git archive "$revision" | tar --extract --directory "$1/tree"
    (cd "$1/tree" && "$packager" -m hatchling build --target sdist --directory "$1/out" >"$1/log" 2>&1) || { cat "$1/log" >&2; exit 1; }
    tar --extract --directory "$1" --file "$1/out/llm_slo_prober-$version.tar.gz"
    for platform in manylinux2014_x86_64 manylinux2014_aarch64; do # of the sdist, so that it has what is needed
        (cd "$1/llm_slo_prober-$version" && PROBER_PLATFORM=$platform "$packager" -m hatchling build --target wheel \
            --directory "$1/out" >"$1/log" 2>&1) || { cat "$1/log" >&2; exit 1; }
    done
    for chart in chart sidecar-chart; do
        helm package "$1/tree/deploy/$chart" --destination "$1" >"$1/log" 2>&1 || { cat "$1/log" >&2; exit 1; }
    done
    for chart in llm-slo-prober llm-slo-prober-sidecar; do # packed again: Helm's own package has the time of packaging in it
        tar --extract --touch --directory "$1/chart" --file "$1/$chart-$version.tgz"
        archive "$1/chart" "$1/out/$chart-$version.tgz" "$chart"
    done
    (cd "$1/tree" && PYTHONPATH=$1/tree "$python" -P -m tools.share_dashboards "$1/dashboards")
    archive "$1" "$1/out/llm-slo-prober-dashboards-$version.tar.gz" dashboards
    archive "$1/tree" "$1/out/llm-slo-prober-mixin-$version.tar.gz" deploy/mixin dashboards
    cp "$1/tree/deploy/prometheus/rules.yaml" "$1/out/llm-slo-prober-rules-$version.yaml"
    cp "$1/tree/deploy/kustomize/components/prometheus-operator/rules/prometheusrule.yaml" "$1/out/llm-slo-prober-prometheusrule-$version.yaml"
}

# 2. Two builds in different folders are the same.
echo "Building $version of $revision twice…"
build "$work/first"
build "$work/again/elsewhere"
diff --brief --recursive "$work/first/out" "$work/again/elsewhere/out" ||
    { echo "two builds differ: what is published could not be checked by building it again" >&2; exit 1; }
cp "$work/first/out/"* "$out"

# 3. What was made is what PyPI, pip and Helm accept.
"$packager" -m twine check --strict "$out"/*.whl "$out"/llm_slo_prober-*.tar.gz
for processor in x86_64 aarch64; do
    shown=$("$packager" -m auditwheel show "$out/llm_slo_prober-$version-py3-none-manylinux2014_$processor.whl" 2>&1 | tr '\n' ' ')
    if ! [[ $shown =~ \"manylinux_2_([0-9]+)_$processor\" ]] || [ "${BASH_REMATCH[1]}" -gt 17 ]; then # manylinux2014 is glibc 2.17
        echo "the wheel for $processor does not keep what its name promises: $shown" >&2
        exit 1
    fi
done
"$packager" -m zipfile -e "$out"/*"manylinux2014_x86_64"*.whl "$work/installed"
installed=$(cd "$work" && PYTHONPATH=$work/installed "$python" -P -m prober --version)
[ "$installed" = "prober, version $version" ] || { echo "the wheel says: $installed" >&2; exit 1; }
helm template release "$out/llm-slo-prober-$version.tgz" --values deploy/chart/ci/minimal-values.yaml >/dev/null
cp -r "$work/first/tree/deploy/sidecar-chart-example" "$work/engine"
mkdir "$work/engine/charts"
cp "$out/llm-slo-prober-sidecar-$version.tgz" "$work/engine/charts"
helm template release "$work/engine" --kube-version=1.29 >/dev/null

# 4. The image, with its list of parts.
tag=llm-slo-prober:$version
builder=''
image="no image was made: give --base IMAGE@sha256:…"
if $dry; then
    image="a dry run makes no image"
elif [ -n "$base" ]; then
    if docker info >/dev/null 2>&1; then builder=docker
    elif command -v podman >/dev/null; then builder=podman
    fi
    image="no image was made: there is no Docker and no Podman"
    if [ -n "$builder" ]; then
        tools/image.sh --base "$base" "$tag"
        container=$("$builder" create "$tag")
        "$builder" cp "$container:/opt/prober/sbom.cdx.json" "$out/llm-slo-prober-$version.cdx.json"
        "$builder" rm "$container" >/dev/null
        image="the image is $tag of $builder"
    fi
fi

# 5. Sums, and a signature where there is a key.
(cd "$out" && sha256sum -- * >../sums && mv ../sums SHA256SUMS)
sign=(cosign sign-blob --yes --bundle "$out/SHA256SUMS.sigstore.json" ${COSIGN_KEY:+--key "$COSIGN_KEY"} "$out/SHA256SUMS")
signed=false
if ! $dry && [ -n "${COSIGN_KEY:-}" ] && command -v cosign >/dev/null; then "${sign[@]}"; signed=true; fi

(cd "$out" && ls -l --human-readable | awk 'NR > 1 {printf "%6s  %s\n", $5, $9}')
echo "All of it is in ${out#"$PWD"/}; $image."
if $dry; then echo "This was a dry run: nothing here is to be published."; exit 0; fi
$signed && signing="SHA256SUMS is signed" || signing=$(printf '%q ' "${sign[@]}")
cat <<STEPS
What is left is yours to do, in this order. It cannot be taken back:
  git tag --sign v$version $revision && git push origin v$version
  $signing
  $packager -m twine upload $out/*.whl $out/llm_slo_prober-$version.tar.gz
  helm push $out/llm-slo-prober-$version.tgz oci://REGISTRY/charts
  helm push $out/llm-slo-prober-sidecar-$version.tgz oci://REGISTRY/charts
  upload the other files of $out to the page of the release, and the dashboards to grafana.com
STEPS
[ -z "$builder" ] || cat <<STEPS
  $builder tag $tag REGISTRY/$tag && $builder push REGISTRY/$tag    # prints a digest, which is signed:
  cosign sign REGISTRY/llm-slo-prober@sha256:…
  cosign attest --type cyclonedx --predicate $out/llm-slo-prober-$version.cdx.json REGISTRY/llm-slo-prober@sha256:…
STEPS
