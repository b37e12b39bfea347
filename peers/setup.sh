#!/usr/bin/env bash
# Makes .venv/ in the repository root with the peers of requirements.txt, at their pinned versions.
# With the argument "oracle" also what the fixtures' scripts need (about 5 GB).
#
# llama.cpp is built from source for this machine: a wheel for every machine has no AVX-512, and a
# comparison against it would flatter us. Takes about five minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -gt 1 ] || { [ $# -eq 1 ] && [ "$1" != oracle ]; }; then
    echo "usage: peers/setup.sh [oracle]" >&2
    exit 2
fi

# gcc before 13 miscompiles the AMX tile configuration: the built engine dies with SIGILL.
if grep -qw amx_tile /proc/cpuinfo 2>/dev/null && [ -z "${CC:-}" ]; then
    if command -v clang++ >/dev/null; then
        export CC=clang CXX=clang++
    elif [ "$(gcc -dumpversion | cut -d. -f1)" -lt 13 ]; then
        echo "peers/setup.sh: this machine has AMX and gcc is older than 13, which builds an" >&2
        echo "engine that crashes; install clang or gcc 13, or set CC and CXX" >&2
        exit 1
    fi
fi

[ -x .venv/bin/python ] || python3 -m venv .venv
export CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-2}"
# A wheel cached by an earlier build may be another machine's: build here, always.
.venv/bin/python -m pip install --quiet --no-cache-dir --no-binary llama-cpp-python \
    -r peers/requirements.txt
if [ "${1:-}" = oracle ]; then
    .venv/bin/python -m pip install --quiet -r peers/requirements-oracle.txt
fi
.venv/bin/python -c 'import llama_cpp as l; print(l.llama_print_system_info().decode())'
