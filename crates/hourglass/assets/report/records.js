// The records of this report, by kind and by workload. `DATA`, which holds them, is what the page around these scripts gives
// them. Not here: how they are shown.

/** Records of a kind, any version of it unless one is named: `{name, schema, id, sha256, record}`. */
function ofKind(kind) {
    return DATA.records.filter((entry) => entry.schema === kind || entry.schema.split("/")[0] === kind);
}

/** A panel per record of a kind; several stand side by side where there is room. */
function panelsOf(kind, panel) {
    const panels = ofKind(kind).map(panel);
    return panels.length > 1 ? h("div", { class: "side" }, panels.map((content) => h("div", {}, content))) : panels;
}

/** Groups entries by a key, in order of first appearance: [[key, entries], ...]. */
function groupBy(entries, key) {
    const groups = new Map();
    for (const entry of entries) {
        const of = key(entry);
        if (!groups.has(of)) groups.set(of, []);
        groups.get(of).push(entry);
    }
    return [...groups];
}

/** Where something comes from: file, evidence id, and whether it may be relied on. */
function source(entry) {
    return h("p", { class: "source" },
        entry.record?.void && [h("span", { class: "chip void" }, "void"), " "],
        "From ", h("a", { href: `#record-${entry.index}` }, entry.name), " (", h("code", {}, entry.id), ")",
        entry.record?.created && `, ${moment(entry.record.created)}`);
}

/** Says that a record is void, and by which check. */
function voidNotice(entry) {
    if (!entry.record?.void) return null;
    const failed = (entry.record.checks ?? []).filter((check) => !check.passed);
    return notice("bad", [
        h("b", {}, "This record is void: a check failed, so nothing in it may be relied on."),
        ...failed.slice(0, 5).map((check) => `${check.name}: expected ${number(check.expected, 6)}, found ${number(check.found, 6)}.`),
    ]);
}

/** Says what of a record was not measured. */
function coverageNotice(coverage) {
    if (!coverage || coverage.complete) return null;
    return notice("warn", `Incomplete, so there is no total: ${coverage.reason}`);
}

/** A workload in a few words. */
function workloadWords(workload) {
    const shape = {
        request: () => `${count(workload.context_tokens)} tokens in, ${count(workload.output_tokens)} out`,
        prefill: () => `prefill of ${count(workload.new_rows)} tokens`,
        decode: () => `decode step after ${count(workload.context_tokens)} tokens`,
    }[workload.phase];
    return `${workload.model}, ${shape ? shape() : workload.phase}, cache for ${count(workload.capacity)}, logits ${workload.logits}`;
}

function workloadLine(workload, id) {
    return h("p", { class: "small" }, "Workload ", h("code", {}, shortId(id)), ": ", workloadWords(workload), ".");
}

/** Links to the records that something rests on. */
function evidenceLinks(references) {
    if (!references || references.length === 0) return null;
    return references.map((reference, index) => {
        const here = DATA.records.find((entry) => entry.sha256 === reference.sha256);
        const label = `${reference.schema} ${shortId(reference.sha256)}`;
        return [index > 0 && ", ", here ? h("a", { href: `#record-${here.index}` }, label) : h("span", { title: `${reference.file}, which is not in this report` }, label)];
    });
}

/** Every `{unavailable, how_to_get}` in a value, with where it stands; lists count once per reason. */
function missingIn(value, path = [], found = []) {
    if (isMissing(value)) found.push({ path: path.filter((step) => typeof step === "string").join("."), ...value });
    else if (Array.isArray(value)) value.forEach((item, index) => missingIn(item, [...path, index], found));
    else if (value !== null && typeof value === "object") {
        for (const [key, item] of Object.entries(value)) missingIn(item, [...path, key], found);
    }
    return found;
}
