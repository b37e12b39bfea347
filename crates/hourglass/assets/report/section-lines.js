// Source lines with what they cost, and the source itself, warmer where it costs more. Not here: kernels' own costs.

function linesPanel(entry) {
    const record = entry.record;
    const unverified = record.files.filter((file) => file.verification !== "verified");
    return [
        h("h3", {}, `Source lines of a ${record.workload.phase} pass, ${record.subject.checkpoint}`),
        voidNotice(entry),
        h("p", { class: "lead" }, stretchWords(record)),
        h("p", { class: "small" }, "Three costs that answer three questions. ", h("b", {}, "Yours"), ": the innermost line in this repository, so that library code and intrinsics count for the line that uses them. ", h("b", {}, "Innermost"), ": where the instruction is from. Each of these two adds up to the kernel. ", h("b", {}, "Inclusive"), ": anywhere in the chain of calls; it adds up to nothing."),
        unverified.length > 0 && details(`${plural(unverified.length, "file")} could not be verified`, table(unverified, [
            { head: "File", of: (file) => h("code", {}, file.file) },
            { head: "Why", of: (file) => file.verification.unverified?.why ?? "not said" },
        ])),
        placeTabs(record.places.filter((place) => place.rows.length > 0)),
        workloadLine(record.workload, record.workload_id),
        source(entry),
    ];
}

function placeTabs(places) {
    const dear = [...places].sort((a, b) => b.cost.samples - a.cost.samples).slice(0, 8);
    if (dear.length === 0) return h("p", {}, "No sample fell on a line.");
    return tabs("Place", dear.map((place) => [placeName(place.place), placePanel(place)]));
}

function placePanel(place) {
    const rows = [...place.rows].sort((a, b) => b.self_in_repository.samples - a.self_in_repository.samples || b.self_innermost.samples - a.self_innermost.samples);
    const shown = rows.slice(0, 25);
    return [
        h("p", { class: "small" }, `${plural(place.cost.samples, "sample")}; ${count(place.outside_repository_samples)} with no line of this repository, ${count(place.line_zero_samples)} on instructions without a line of their own.`),
        table(shown, [
            { head: "Rank", form: count, of: (row) => row.rank ?? null },
            { head: "Line", of: (row) => lineName(row) },
            { head: "Function", of: (row) => h("span", { class: "mono" }, row.functions[0] ?? "") },
            { head: "Yours (95 % interval)", of: (row) => shareCell(row.self_in_repository.share) },
            { head: "Innermost", unit: "share", of: (row) => row.self_innermost.share.value },
            { head: "Inclusive, not to be summed", unit: "share", of: (row) => row.inclusive_not_summable.share.value },
        ]),
        rows.length > shown.length && h("p", { class: "small" }, `${count(rows.length - shown.length)} more lines are in the record.`),
        heatViews(rows),
    ];
}

function lineName(row) {
    const line = row.line === 0 ? "no line of its own" : row.line;
    return h("span", { class: "mono" }, `${row.file}:${line}`, !row.verified && row.in_repository && [" ", h("span", { class: "chip" }, "unverified")]);
}

/** The source around lines that cost something, where the checkout had it when this report was made. */
function heatViews(rows) {
    const byFile = groupBy(rows.filter((row) => row.in_repository && row.line > 0), (row) => row.file);
    const cost = (of) => of.reduce((sum, row) => sum + row.self_in_repository.share.value, 0);
    const dear = byFile.filter(([, of]) => cost(of) >= 0.01).sort((a, b) => cost(b[1]) - cost(a[1])).slice(0, 4);
    return dear.map(([file, of]) => heatView(file, of, cost(of)));
}

const AROUND = 3;

function heatView(file, rows, cost) {
    const found = DATA.sources[file];
    const title = `${file}: ${percent(cost)} of the kernel`;
    if (!found || found.missing) return h("p", { class: "small" }, title, ". Its text is not here: ", found?.missing ?? "it was not read", ".");
    const costs = new Map(rows.map((row) => [row.line, row.self_in_repository.share.value]));
    const most = Math.max(...costs.values());
    const wanted = new Set();
    for (const [line, share] of costs) {
        if (share < 0.002) continue;
        for (let near = line - AROUND; near <= line + AROUND; near += 1) wanted.add(near);
    }
    const lines = [...wanted].filter((line) => found.lines[line] !== undefined).sort((a, b) => a - b);
    const body = [];
    let last = null;
    // On paper the dearest line and what stands around it.
    const dearest = [...costs].reduce((best, one) => (one[1] > best[1] ? one : best))[0];
    const far = (line) => Math.abs(line - dearest) > PAPER_ROWS;
    for (const line of lines) {
        if (last !== null && line > last + 1) body.push(h("div", { class: `cut${far(line) ? " screen-only" : ""}` }, "…"));
        last = line;
        const share = costs.get(line) ?? 0;
        const heat = share > 0 ? 0.06 + 0.5 * (share / most) : 0;
        body.push(h("div", { class: `row${far(line) ? " screen-only" : ""}`, style: heat > 0 && `background: rgb(var(--heat) / ${heat.toFixed(3)})` },
            h("span", { class: "cost" }, share >= 0.0005 ? percent(share) : ""), h("span", { class: "at" }, line), h("span", { class: "text" }, found.lines[line])));
    }
    return h("div", {},
        h("h4", {}, title, " ", !found.verified && h("span", { class: "chip", title: found.why }, "unverified")),
        !found.verified && h("p", { class: "small" }, `This text may not be what was captured: ${found.why}`),
        h("div", { class: "source-view", tabindex: 0, role: "group", "aria-label": `Source of ${file} with costs` }, body),
        lines.some(far) && h("p", { class: "paper-only" }, "The dearest line and what stands around it: this file on a screen has every line that costs something."));
}
