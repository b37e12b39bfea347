// Comparisons of two records, and decisions with what they rest on. Not here: making either.

/** Two replays, group by group (`replay-comparison/1`). */
function comparisonSection() {
    return [
        ofKind("comparison").map(comparisonPanel),
        ofKind("replay-comparison").map((entry) => [
            h("h3", {}, `${entry.record.before.checkpoint} and ${entry.record.after.checkpoint}, group by group`),
            voidNotice(entry),
            changes([...entry.record.groups, { ...entry.record.total, sum: true }]),
            arrival(known(entry.record.request), entry.record.request),
            workloadLine(entry.record.workload, entry.record.workload_id),
            source(entry),
        ]),
    ];
}

/** Rows with a before and an after, as a slope of bars and a table. */
function changes(rows) {
    const drawn = rows.filter((row) => valueOf(row.before) !== null && valueOf(row.after) !== null && !row.sum);
    const unitOf = drawn.map((row) => row.before.unit)[0] ?? "us";
    const [unit, factor] = scaleFor(drawn.flatMap((row) => [valueOf(row.before), valueOf(row.after)]), unitOf);
    const sides = drawn.flatMap((row) => [
        { row, name: row.name, side: "before", value: valueOf(row.before) * factor },
        { row, name: row.name, side: "after", value: valueOf(row.after) * factor },
    ]);
    const names = drawn.map((row) => row.name);
    const columns = [
        { head: "Group", of: (row) => row.name },
        { head: "Before", unit: unitOf, of: (row) => row.before },
        { head: "After", unit: unitOf, of: (row) => row.after },
        { head: "Saved", unit: unitOf, of: (row) => row.saved },
        { head: "Saved", unit: "share", of: (row) => row.gain },
        { head: "Beyond both spreads", of: (row) => (known(row.beyond_spread) === null ? row.beyond_spread : row.beyond_spread ? "yes" : "no") },
    ];
    const colours = new Map([["before", "var(--c7)"], ["after", "var(--c1)"]]);
    if (drawn.length === 0) return table(rows, columns, { total: (row) => row.sum });
    return chart({
        title: "Before and after",
        label: "Groups before and after",
        key: legend(colours),
        data: sides,
        select: 'g[aria-label="bar"] rect',
        describe: (one) => `${one.name}, ${one.side}: ${number(one.value)} ${unit}.`,
        draw: (width) => {
            const margin = marginFor(names, width);
            return {
                height: 44 + names.length * 36,
                marginLeft: margin,
                marginRight: 20,
                x: { label: unit, grid: true },
                y: { axis: null, domain: ["before", "after"], padding: 0.15 },
                fy: { domain: names, label: null, tickFormat: (name) => cut(name, margin), axis: "left", padding: 0.2 },
                color: { domain: [...colours.keys()], range: [...colours.values()] },
                marks: [
                    Plot.barX(sides, { x: "value", y: "side", fy: "name", fill: "side" }),
                    Plot.ruleX([0], { stroke: "var(--ink)" }),
                ],
            };
        },
        below: details("The numbers as a table", table(rows, columns, { total: (row) => row.sum })),
    });
}

/** How much of what a replay saved arrived in the request. */
function arrival(found, missing) {
    if (!found) return h("p", { class: "small" }, "What arrived in the request: ", missingWord(missing), ` ${missing.unavailable}. To get it: `, h("code", {}, missing.how_to_get), ".");
    return [
        h("p", {}, "Of what the replay saved per pass, ", h("b", {}, valueOf(found.arrived) === null ? missingWord(found.arrived) : percent(valueOf(found.arrived), 0)), " arrived in the request."),
        table([found.pass, found.whole_request], [
            { head: "In the request", of: (row) => row.name },
            { head: "Before", unit: "s", of: (row) => row.before },
            { head: "After", unit: "s", of: (row) => row.after },
            { head: "Saved", unit: "share", of: (row) => row.gain },
        ]),
    ];
}

function comparisonPanel() {
    return null;
}

function decisionSection() {
    return null;
}
