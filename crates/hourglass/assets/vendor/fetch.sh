#!/usr/bin/env bash
# Makes plot.min.js and plot.LICENSES.txt beside this script: the parts of Observable Plot that the report draws with, and of d3
# what they need, bundled by esbuild. Needs node and npm. What npm delivers is held to package-lock.json's hashes, and the
# result to the SHA-256 below, so that a change of either is seen.
set -euo pipefail
cd "$(dirname "$0")"

if [ $# -gt 0 ]; then
    echo "usage: crates/hourglass/assets/vendor/fetch.sh" >&2
    exit 2
fi

expected=4b708017e1fb0906891c0bf3fec2ac7eec74c350463b83f7563d9378fe3084ee
vendor=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp package.json package-lock.json plot.entry.mjs "$work"
cd "$work"
npm ci --silent --no-audit --no-fund --ignore-scripts
node_modules/.bin/esbuild plot.entry.mjs --bundle --minify --charset=ascii --format=iife --global-name=Plot \
    --legal-comments=none --log-level=warning --metafile=parts.json --outfile=plot.min.js
found=$(sha256sum plot.min.js | cut -d ' ' -f 1)
if [ "$found" != "$expected" ]; then
    echo "fetch.sh: plot.min.js has SHA-256 $found, expected $expected: nothing was changed" >&2
    exit 1
fi

# The licence of every package that a byte of the bundle is from.
node - > plot.LICENSES.txt <<'SCRIPT'
const fs = require("fs");
const inputs = Object.values(JSON.parse(fs.readFileSync("parts.json")).outputs)[0].inputs;
const parts = Object.keys(inputs).filter((part) => inputs[part].bytesInOutput > 0);
const named = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//;
const packages = new Set(parts.map((part) => named.exec(part)?.[1]).filter(Boolean));
for (const name of [...packages].sort()) {
    const folder = `node_modules/${name}`;
    const about = JSON.parse(fs.readFileSync(`${folder}/package.json`));
    const file = fs.readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    console.log(`${name} ${about.version} (${about.license})\n`);
    console.log(`${file ? fs.readFileSync(`${folder}/${file}`, "utf8").trim() : "No licence text in the package."}\n`);
}
SCRIPT
mv plot.min.js plot.LICENSES.txt "$vendor"
