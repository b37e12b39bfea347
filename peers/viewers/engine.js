// Perfetto's trace processor outside a browser: `node engine.js FOLDER`, where FOLDER has engine_bundle.js and
// trace_processor.wasm. Requests come on stdin and answers go to stdout, each as a little-endian 32-bit length and that many
// bytes of Perfetto's own remote protocol (TraceProcessorRpcStream). Not here: what is asked.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];

// The bundle is a web worker: it is given a worker's globals, and its one download is answered from the folder.
const scope = {
    console: { ...console, log: console.error },
    setTimeout, clearTimeout, setInterval, clearInterval, queueMicrotask,
    TextDecoder, TextEncoder, performance, crypto, URL,
    location: { href: "http://localhost/engine_bundle.js", search: "" },
    WorkerGlobalScope: function () {},
    XMLHttpRequest: class {
        open(method, url) {
            this.file = path.join(folder, path.basename(url));
        }
        send() {
            this.response = bytesInside(fs.readFileSync(this.file)).buffer;
        }
    },
    addEventListener: () => {},
};
scope.self = scope;
scope.globalThis = scope;
vm.createContext(scope);
// Byte arrays that cross the border must be of the worker's own kind.
const bytesInside = vm.runInContext("(buffer) => new Uint8Array(buffer)", scope);
try {
    vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), scope);
} catch (error) {
    // Without node's own report, which prints the line: the bundle is one line.
    console.error("engine.js: " + error.message);
    process.exit(1);
}

const answer = (bytes) => {
    const length = Buffer.alloc(4);
    length.writeUInt32LE(bytes.length);
    // One write may take only a part of a long answer.
    for (let rest = Buffer.concat([length, Buffer.from(bytes)]); rest.length > 0;) {
        rest = rest.subarray(fs.writeSync(1, rest));
    }
};
const port = { onmessage: null, postMessage: (bytes) => answer(bytes), close: () => {} };
scope.onmessage({ data: port });

let pending = Buffer.alloc(0);
process.stdin.on("data", (chunk) => {
    pending = Buffer.concat([pending, chunk]);
    while (pending.length >= 4 && pending.length >= 4 + pending.readUInt32LE(0)) {
        const end = 4 + pending.readUInt32LE(0);
        const request = Uint8Array.from(pending.subarray(4, end));
        pending = pending.subarray(end);
        port.onmessage({ data: bytesInside(request.buffer) });
    }
});
process.stdin.on("end", () => process.exit(0));
