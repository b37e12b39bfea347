// Reads a profile with speedscope's own importer and prints what it made of it as JSON: `node speedscope.js BUNDLE FILE`,
// where BUNDLE is the program of its web page. Not here: whether the file fits speedscope's schema (speedscope.py).
"use strict";
const fs = require("fs");
const vm = require("vm");

const [bundle, file] = process.argv.slice(2);

// The importer is one of the page's modules: it is handed out where the page itself first takes hold of it. What the page does
// from there on needs a browser, and ends.
const program = fs.readFileSync(bundle, "utf8");
const use = /\(await (\w+)\)\.importProfileGroupFromText\(/.exec(program);
const place = use && program.indexOf(`var ${use[1]}=`);
if (!place || place < 0) {
    console.error("speedscope.js: no importer in " + bundle + "; run peers/viewers/setup.sh for the pinned version");
    process.exit(1);
}
const end = program.indexOf(";", place) + 1;
const handed = program.slice(0, end) + `globalThis.handOut(${use[1]});` + program.slice(end);

let importer = null;
const scope = {
    console: { ...console, log: () => {} },
    setTimeout, clearTimeout, setInterval, clearInterval, queueMicrotask,
    TextDecoder, TextEncoder, performance, URL, Blob,
    location: { hash: "", href: "http://localhost/", protocol: "http:" },
    navigator: { userAgent: "" },
    handOut: (module) => { importer = module; },
};
scope.self = scope.window = scope.global = scope;
scope.document = { createElement: () => ({ style: {} }), createTextNode: () => ({}), addEventListener: () => {} };
vm.createContext(scope);
try {
    vm.runInContext(handed, scope);
} catch (error) {
    if (!importer) {
        console.error("speedscope.js: " + error.message);
        process.exit(1);
    }
}

const main = async () => {
    const group = await (await importer).importProfileGroupFromText(file, fs.readFileSync(file, "utf8"));
    if (!group) throw new Error("speedscope does not know the file's format");
    const profiles = group.profiles.map((profile) => {
        // Total time under each stack, as its names from the outermost function in.
        const stacks = {};
        const open = [];
        profile.forEachCall(
            (node, at) => open.push([node.frame.name, at]),
            (node, at) => {
                const stack = open.map((frame) => frame[0]).join(";");
                stacks[stack] = (stacks[stack] || 0) + at - open.pop()[1];
            });
        return { name: profile.getName(), unit: profile.getWeightUnit(), total: profile.getTotalWeight(), stacks };
    });
    console.log(JSON.stringify({ name: group.name, profiles }));
    process.exit(0);
};
main().catch((error) => {
    console.error("speedscope.js: " + error.message);
    process.exit(1);
});
process.on("unhandledRejection", () => {});
