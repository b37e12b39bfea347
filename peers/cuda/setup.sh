#!/bin/sh
# Fetches NVIDIA's run-time compiler and disassembler from PyPI into peers/cuda/lib and peers/cuda/bin (95 MB of wheels, 260 MB on
# disk), so that every GPU kernel can be compiled and read on a machine without a GPU. They are NVIDIA's, under its licence, and
# are not part of this repository.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ -e "$here/lib/libnvrtc.so.13" ] && [ -e "$here/bin/nvdisasm" ]; then
    echo "peers/cuda: there already"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work" \
    nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvdisasm==13.2.51
for wheel in "$work"/*.whl; do python3 -m zipfile -e "$wheel" "$work/site"; done
mkdir -p "$here/lib" "$here/bin"
# The .alt libraries are a second build of the same for old systems.
find "$work/site" -name 'libnvrtc*.so.*' ! -name '*.alt.*' -exec mv {} "$here/lib/" \;
find "$work/site" -name nvdisasm -exec mv {} "$here/bin/" \;
chmod +x "$here/bin/nvdisasm"
echo "peers/cuda: $(ls "$here/lib" "$here/bin" | tr '\n' ' ')"
