// Operator replay: what each group costs at one shape, rung by rung, and whether the request would notice. Not here: roofs.

/** Every replayed case: {entry, name, subject, replay}. */
function replayCases() {
    const cases = [];
    for (const entry of ofKind("replay")) {
        for (const row of entry.record.cases ?? []) cases.push({ entry, name: row.replay.checkpoint, subject: row.subject, replay: row.replay });
    }
    for (const entry of ofKind("find")) {
        for (const replay of entry.record.replays ?? []) cases.push({ entry, name: replay.checkpoint, subject: entry.record.subject, replay });
    }
    return cases;
}

/** Groups and sampling of a replay, as parts of its total. */
function replayParts(replay) {
    const rows = replay.groups.map((row) => ({ part: row.group, row, timing: row.timing }));
    const sampling = known(replay.sampling);
    return sampling ? [...rows, { part: "sampling", row: null, timing: sampling }] : rows;
}

function operatorSection() {
    const cases = replayCases();
    const shapes = groupBy(cases, (one) => one.replay.workload_id);
    const charts = shapes.map(([id, same]) => {
        // Two records of one rung are two rows.
        const twice = new Set(same.map((one) => one.name).filter((name, index, all) => all.indexOf(name) !== index));
        const rows = same.map((one) => ({ ...one, label: twice.has(one.name) ? `${one.name} (${one.entry.id.slice(0, 6)})` : one.name }));
        return [workloadTitle(rows[0].replay.workload), replayChart(id, rows)];
    });
    return [
        tabs("Shape", charts),
        panelsOf("sensitivity", sensitivityPanel),
    ];
}

function workloadTitle(workload) {
    return workload.phase === "decode" ? `Decode after ${count(workload.context_tokens)} tokens, ${workload.model}` : `Prefill of ${count(workload.new_rows)} tokens, ${workload.model}`;
}

function replayChart(id, rows) {
    const whole = rows.filter((one) => one.replay.coverage.complete);
    const missing = rows.filter((one) => !one.replay.coverage.complete);
    const parts = whole.flatMap((one) => replayParts(one.replay).map((part) => ({ ...part, label: one.label, one, value: valueOf(part.timing.median) })))
        .filter((part) => part.value !== null);
    const notes = missing.length > 0 && notice("warn", missing.map((one) => `${one.label}: not replayed, so it has no row: ${one.replay.coverage.reason}`));
    if (parts.length === 0) return [notes, workloadLine(rows[0].replay.workload, id)];
    const colours = coloursFor(parts.map((part) => part.part));
    const totals = new Map(whole.map((one) => [one.label, valueOf(one.replay.replay_total_us)]));
    const [unit, factor] = scaleFor([...totals.values()].map((us) => us / 1e6), "s");
    const names = whole.map((one) => one.label);
    const end = Math.max(...totals.values()) * 1e-6 * factor;
    const dispatch = (one) => known(one.replay.dispatch_floor)?.median ?? one.replay.dispatch_floor;
    return [
        notes,
        chart({
            title: "What each group of operators costs",
            note: "Medians, each group timed alone in the real pass. Their sum is no step's time: a real step does not stop between groups. A share is no prediction either; only the request clock says what a request gains.",
            label: "Groups of operators per checkpoint",
            key: legend(colours),
            data: parts,
            select: 'g[aria-label="bar"] rect',
            describe: (part) => `${part.label}, ${part.part}: ${number(part.value * 1e-6 * factor)} ${unit}, ${percent(part.value / totals.get(part.label))} of the replay.` + (part.row ? ` ${plural(part.row.calls, "call")}, ${part.row.kernels.join("; ")}` : ""),
            draw: (width) => {
                const margin = marginFor(names, width);
                return {
                    height: 52 + names.length * 30,
                    marginLeft: margin,
                    marginRight: 64,
                    x: { label: unit, grid: true, domain: [0, end * 1.02] },
                    y: { domain: names, label: null, tickFormat: (name) => cut(name, margin), tickSize: 0 },
                    color: { domain: [...colours.keys()], range: [...colours.values()] },
                    marks: [
                        Plot.barX(parts, { x: (part) => part.value * 1e-6 * factor, y: "label", fill: "part", inset: 4, insetLeft: 0.5, insetRight: 0.5, order: [...colours.keys()] }),
                        Plot.text(names, { x: (name) => totals.get(name) * 1e-6 * factor, y: (name) => name, text: (name) => number(totals.get(name) * 1e-6 * factor), textAnchor: "start", dx: 6, fill: "currentColor" }),
                        Plot.ruleX([0], { stroke: "var(--ink)" }),
                    ],
                };
            },
            below: [
                details("The numbers as a table", whole.map((one) => groupTable(one, dispatch))),
                aside("Each operator at its place", whole.map(operatorTable)),
            ],
        }),
        workloadLine(rows[0].replay.workload, id),
        groupBy(rows, (one) => one.entry).map(([entry]) => [voidNotice(entry), source(entry)]),
    ];
}

function groupTable(one, dispatch) {
    const rows = replayParts(one.replay);
    const absentGroups = (one.replay.absent ?? []).map((row) => `${row.group}: ${row.why}`);
    return [
        h("h4", {}, one.label),
        table([...rows, { part: "replay total", timing: { median: one.replay.replay_total_us }, sum: true }], [
            { head: "Group", of: (part) => part.part },
            { head: "Calls", form: count, of: (part) => part.row?.calls ?? null },
            { head: "Median", unit: "us", of: (part) => part.timing.median },
            { head: "Spread", unit: "us", of: (part) => part.timing.spread ?? null },
            { head: "Share", unit: "share", of: (part) => part.timing.share ?? null },
            { head: "Least time at the ceilings", unit: "us", of: (part) => part.row ? known(part.row.floor)?.least ?? part.row.floor : null },
            { head: "Of what the machine can", unit: "share", of: (part) => part.row ? known(part.row.floor)?.fraction ?? part.row.floor : null },
            { head: "Limit", of: (part) => part.row ? known(known(part.row.floor)?.limit) ?? "" : "" },
            { head: "Kernels", of: (part) => h("span", { class: "mono" }, part.row?.kernels.join("; ") ?? ""), wide: true },
        ], { total: (part) => part.sum }),
        h("p", { class: "small" }, "The pass with all its calls: ", reading(known(one.replay.whole_pass)?.median ?? one.replay.whole_pass), "; a walk that runs no call: ", reading(dispatch(one)), ".", absentGroups.length > 0 && ` Without calls here: ${absentGroups.join("; ")}.`),
    ];
}

function operatorTable(one) {
    const operators = known(one.replay.operators);
    if (!operators) return [h("h4", {}, one.label), h("p", { class: "small" }, missingWord(one.replay.operators), ` ${one.replay.operators?.unavailable ?? ""}`)];
    const rows = [...operators].sort((a, b) => (valueOf(b.row.timing.median) ?? 0) - (valueOf(a.row.timing.median) ?? 0));
    return [
        h("h4", {}, one.label),
        table(rows, [
            { head: "Place", of: (row) => row.slot === row.operator ? row.slot : `${row.slot}: ${row.operator}` },
            { head: "Calls", form: count, of: (row) => row.row.calls },
            { head: "Median", unit: "us", of: (row) => row.row.timing.median },
            { head: "Share", unit: "share", of: (row) => row.row.timing.share },
            { head: "Bandwidth", unit: "GB/s", of: (row) => row.row.bandwidth },
            { head: "Arithmetic", unit: "GFLOP/s", of: (row) => row.row.arithmetic },
            { head: "Of what the machine can", unit: "share", of: (row) => known(row.row.floor)?.fraction ?? row.row.floor },
        ]),
    ];
}

/** How much of a time added to an operator arrives in the request. */
function sensitivityPanel(entry) {
    const record = entry.record;
    const rows = record.targets.map((target) => ({ ...target, fit: known(target.slope) })).filter((target) => target.fit);
    const names = rows.map((row) => row.target);
    const columns = [
        { head: "Target", of: (row) => row.target },
        { head: "Arrives in the request, per added second", of: (row) => known(row.slope) ? `${number(row.slope.value)} (${number(row.slope.low)} to ${number(row.slope.high)})` : row.slope },
        { head: "Its own time", unit: "s", of: (row) => row.own },
        { head: "What the request could lose at most", unit: "s", of: (row) => row.at_stake },
        { head: "Verdict", of: (row) => word(words(row.verdict)) },
    ];
    return [
        h("h3", {}, "Would the request notice a faster operator?"),
        voidNotice(entry),
        coverageNotice(record.coverage),
        rows.length === 0 ? table(record.targets, columns) : chart({
            title: "Part of an added delay that arrives in the request",
            note: "Time was added to every call of a target and the whole request clocked. Near 1, the request waits for this target, and a faster one would be noticed; near 0, something else hides it. Lines are the intervals.",
            label: "Sensitivity of the request",
            data: rows,
            select: 'g[aria-label="dot"] circle',
            describe: (row) => `${row.target}: ${number(row.fit.value)} of each added second arrives (${number(row.fit.low)} to ${number(row.fit.high)}): ${words(row.verdict)}.`,
            draw: (width) => {
                const margin = marginFor(names, width);
                return {
                    height: 56 + rows.length * 24,
                    marginLeft: margin,
                    marginRight: 20,
                    x: { label: "request seconds per added second", grid: true, domain: [Math.min(0, ...rows.map((row) => row.fit.low)), Math.max(1.1, ...rows.map((row) => row.fit.high))] },
                    y: { domain: names, label: null, tickFormat: (name) => cut(name, margin), tickSize: 0 },
                    marks: [
                        Plot.ruleX([0, 1], { stroke: "var(--soft)", strokeDasharray: "3 3" }),
                        Plot.link(rows, { x1: (row) => row.fit.low, x2: (row) => row.fit.high, y1: "target", y2: "target", stroke: "var(--c1)", strokeWidth: 2 }),
                        Plot.dot(rows, { x: (row) => row.fit.value, y: "target", r: 4.5, fill: "var(--c1)", stroke: "var(--paper)" }),
                    ],
                };
            },
            below: behind(record.targets, columns),
        }),
        workloadLine(record.workload, record.workload_id),
        source(entry),
    ];
}
