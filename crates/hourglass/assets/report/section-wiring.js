// Which kernel every call gets, and what clocked requests really dispatched. Not here: what the calls cost.

function wiringSection() {
    const proofs = [...ofKind("find"), ...ofKind("bench")].map(dispatchedPanel).filter(Boolean);
    const plans = ofKind("wiring").map((entry) => [
        h("h3", {}, `The plan of ${entry.record.subject.checkpoint}`),
        voidNotice(entry),
        tabs("Phase", entry.record.passes.map((pass) => [workloadTitle(pass.workload), planTable(pass)])),
        entry.record.unreached.length > 0 && details(`${plural(entry.record.unreached.length, "kernel")} that no checkpoint reaches here`, table(entry.record.unreached, [
            { head: "Operator", of: (one) => one.operator },
            { head: "Kernel", of: (one) => h("code", {}, one.kernel) },
            { head: "Why", of: (one) => unreachedWords(one.why ?? one.reason), wide: true },
        ])),
        source(entry),
    ]);
    return [...proofs, ...plans];
}

function unreachedWords(why) {
    if (why === null || why === undefined) return "";
    return typeof why === "string" ? words(why) : Object.entries(why).map(([kind, detail]) => `${words(kind)}: ${typeof detail === "string" ? detail : JSON.stringify(detail)}`).join("; ");
}

/** Calls of a pass by kernel. */
function planTable(pass) {
    const groups = groupBy(pass.calls, (call) => `${call.operator}\u0000${call.kernel}`);
    const sum = (calls, name) => calls.reduce((total, call) => total + call[name], 0);
    return table(groups.map(([, calls]) => ({ calls, first: calls[0] })), [
        { head: "Operator", of: (row) => row.first.operator },
        { head: "Kernel", of: (row) => h("code", {}, row.first.kernel) },
        { head: "Calls", form: count, of: (row) => row.calls.length },
        { head: "Places", of: (row) => [...new Set(row.calls.map((call) => call.slot))].join(", "), wide: true },
        { head: "Bytes read", unit: "B", of: (row) => sum(row.calls, "bytes_read") },
        { head: "Operations", form: (value) => number(value), of: (row) => sum(row.calls, "flops") },
        { head: "Source", of: (row) => h("span", { class: "mono" }, row.first.source) },
    ]);
}

/** Planned beside dispatched, out of the clocked requests. */
function dispatchedPanel(entry) {
    const rows = (entry.record.wiring ?? []).map((wiring) => ({ ...wiring, name: known(entry.record.subject)?.checkpoint ?? "" }));
    (entry.record.arms ?? []).forEach((arm, index) => {
        const first = entry.record.samples.find((sample) => sample.arm === index && sample.outcome.measured);
        for (const wiring of first?.outcome.measured.wiring ?? []) rows.push({ ...wiring, name: arm.name });
    });
    if (rows.length === 0) return null;
    const off = rows.filter((row) => row.dispatched !== row.planned || row.deviations.length > 0);
    return [
        h("h3", {}, "What clocked requests dispatched"),
        off.length > 0
            ? notice("bad", off.flatMap((row) => row.deviations.slice(0, 5).map((line) => `${row.name}, ${row.phase}: ${line}`)))
            : h("p", {}, "Every clocked request made exactly the calls that its program plans."),
        aside("The counts", table(rows, [
            { head: "What ran", of: (row) => row.name },
            { head: "Phase", of: (row) => row.phase },
            { head: "Passes", form: count, of: (row) => row.passes },
            { head: "Calls per pass", form: count, of: (row) => row.calls_per_pass },
            { head: "Planned", form: count, of: (row) => row.planned },
            { head: "Dispatched", form: count, of: (row) => row.dispatched },
            { head: "Layers as planned", of: (row) => `${row.layers_as_planned} of ${row.layers}` },
        ])),
        source(entry),
    ];
}
