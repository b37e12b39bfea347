// How a request splits into prefill, decode and the rest. Not here: the operators inside them.

/** One clocked request per row: [{name, entry, workload, id, prefill, decode, whole}], seconds or null. */
function clockedRequests() {
    const rows = [];
    const push = (entry, name, workload, id, clock) => rows.push({
        entry, name, workload, id,
        prefill: valueOf(clock.prefill),
        decode: valueOf(clock.decode),
        whole: valueOf(clock.whole_request),
    });
    for (const entry of ofKind("bench")) {
        entry.record.arms.forEach((arm, index) => {
            const clocks = entry.record.samples
                .filter((sample) => sample.arm === index && sample.outcome.measured && !sample.excluded)
                .map((sample) => sample.outcome.measured.clock);
            if (clocks.length === 0) return;
            // The sample in the middle by whole request, so that its parts belong together.
            clocks.sort((a, b) => (valueOf(a.whole_request) ?? 0) - (valueOf(b.whole_request) ?? 0));
            push(entry, arm.name, entry.record.workload, entry.record.workload_id, clocks[Math.floor((clocks.length - 1) / 2)]);
        });
    }
    for (const entry of ofKind("find")) {
        const clock = known(entry.record.request);
        if (clock) push(entry, known(entry.record.subject)?.checkpoint ?? "the request", entry.record.workload, entry.record.workload_id, clock);
    }
    return rows;
}

function phaseSection() {
    const groups = groupBy(clockedRequests(), (row) => `${row.entry.index} ${row.id}`);
    return groups.map(([, rows]) => {
        const complete = rows.filter((row) => row.prefill !== null && row.decode !== null && row.whole !== null);
        if (complete.length === 0) return notice("absent", "No request here was complete, so its phases have no sum.");
        const parts = complete.flatMap((row) => [
            { row, name: row.name, part: "prefill", value: row.prefill },
            { row, name: row.name, part: "decode", value: row.decode },
            { row, name: row.name, part: "other parts", value: Math.max(0, row.whole - row.prefill - row.decode) },
        ]);
        const [unit, factor] = scaleFor(complete.map((row) => row.whole), "s");
        const colours = coloursFor(["prefill", "decode", "other parts"]);
        const names = complete.map((row) => row.name);
        return [
            chart({
                title: "Where the time of one request goes",
                note: "Prefill reads the prompt and makes the first token; decode makes the others one by one; the other parts are set-up, input and release. The request in the middle of each arm's samples.",
                label: "Phases of a request",
                key: legend(colours),
                data: parts,
                select: 'g[aria-label="bar"] rect',
                describe: (part) => `${part.name}: ${part.part} ${number(part.value * factor)} ${unit}, ${percent(part.value / part.row.whole)} of the request.`,
                draw: (width) => {
                    const margin = marginFor(names, width);
                    return {
                        height: 52 + complete.length * 26,
                        marginLeft: margin,
                        marginRight: 20,
                        x: { label: unit, grid: true },
                        y: { domain: names, label: null, tickFormat: (name) => cut(name, margin), tickSize: 0 },
                        color: { domain: [...colours.keys()], range: [...colours.values()] },
                        marks: [
                            Plot.barX(parts, { x: (part) => part.value * factor, y: "name", fill: "part", inset: 3, insetLeft: 0.5, insetRight: 0.5, order: ["prefill", "decode", "other parts"] }),
                            Plot.ruleX([0], { stroke: "var(--ink)" }),
                        ],
                    };
                },
                below: behind(complete, [
                    { head: "Arm", of: (row) => row.name },
                    { head: "Prefill", unit: "s", of: (row) => row.prefill },
                    { head: "Decode", unit: "s", of: (row) => row.decode },
                    { head: "Whole request", unit: "s", of: (row) => row.whole },
                    { head: "Decode's share", unit: "share", of: (row) => row.decode / row.whole },
                ]),
            }),
            workloadLine(rows[0].workload, rows[0].id),
            source(rows[0].entry),
        ];
    });
}
