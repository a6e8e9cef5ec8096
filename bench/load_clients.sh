#!/usr/bin/env bash
# bench/load_clients.sh DIR: load clients of others from the package index, each in an environment of its own under DIR, for
# `python -m bench.load_clients DIR`; what is there already is kept. 4 GB with a CPU build of torch in PIP_FIND_LINKS, else more.
#   DIR/vllm      `vllm bench serve`
#   DIR/tiny      a tokenizer (of a tiny model), without which most of them do not start
#   DIR/aiperf    AIPerf
#   DIR/guidellm  GuideLLM
#   DIR/sglang    the wheel of SGLang alone: its compiled client is one library of it
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# = 1 ] || { echo "usage: bench/load_clients.sh DIR" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)

# install NAME PACKAGE…: an environment with these packages.
install() {
    local path=$dir/$1
    shift
    [ ! -e "$path/installed" ] || return 0
    echo "installing $* into $path" >&2
    "$dir/uv/bin/uv" venv --quiet --clear --python "${PYTHON:-python3}" "$path"
    VIRTUAL_ENV=$path "$dir/uv/bin/uv" pip install --quiet ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} "$@"
    touch "$path/installed"
}

"$root/tests/engines/install_vllm.sh" "$dir"
install aiperf aiperf==0.13.0
install guidellm guidellm==0.8.1 torch==2.13.0
install sglang --no-deps sglang==0.5.23
