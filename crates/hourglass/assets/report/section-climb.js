// The ladder walked on this machine: hypothesis, prediction, what was gained, decision. Not here: the clock of each step.

function climbSection() {
    return panelsOf("climb", (entry) => {
        const record = entry.record;
        return [
            h("h3", {}, `The ladder from ${record.from} to ${record.to}`),
            workloadLine(record.workload, record.workload_id),
            voidNotice(entry),
            coverageNotice(record.coverage),
            record.rows.length > 0 ? [climbChart(record), climbTable(record)] : h("p", {}, "No rung was finished."),
            source(entry),
        ];
    });
}

const FINDING_COLOURS = { confirmed: "var(--c3)", refuted: "var(--c4)", inconclusive: "var(--c7)", void: "var(--c6)" };

/** The request before and after each rung, with the interval of the ratio, and what was predicted. */
function climbChart(record) {
    const rows = record.rows.filter((row) => valueOf(row.before) !== null && valueOf(row.after) !== null);
    if (rows.length === 0) return null;
    const [unit, factor] = scaleFor(rows.map((row) => valueOf(row.before)), "s");
    const data = rows.map((row) => {
        const before = valueOf(row.before) * factor;
        const interval = known(row.interval);
        const predicted = valueOf(row.predicted.at_most);
        return {
            row,
            name: row.checkpoint,
            before,
            after: valueOf(row.after) * factor,
            low: interval ? before * interval.low : null,
            high: interval ? before * interval.high : null,
            atMost: predicted === null ? null : Math.max(0, before - predicted * factor),
        };
    });
    const names = data.map((one) => one.name);
    const end = Math.max(...data.flatMap((one) => [one.before, one.after])) * 1.08;
    const colours = new Map([...new Set(data.map((one) => one.row.finding))].map((finding) => [finding, FINDING_COLOURS[finding] ?? "var(--c1)"]));
    return chart({
        title: "The request before and after each rung",
        note: "Ring: the rung below. Dot: the rung, clocked in alternation with it; the line is the interval of the difference. Tick: the most that the profile of the rung below allowed.",
        label: "Route up the ladder",
        key: legend(colours, true),
        data,
        select: ".after circle",
        describe: (one) => `${one.name}: ${number(one.before)} to ${number(one.after)} ${unit}; ${one.row.sentence}`,
        draw: (width) => {
            const margin = marginFor(names, width);
            return {
                height: 56 + data.length * 28,
                marginLeft: margin,
                marginRight: 20,
                x: { domain: [0, end], label: `whole request, ${unit}`, grid: true },
                y: { domain: names, label: null, tickFormat: (name) => cut(name, margin), tickSize: 0 },
                color: { domain: [...colours.keys()], range: [...colours.values()] },
                marks: [
                    Plot.link(data, { x1: "before", x2: "after", y1: "name", y2: "name", stroke: "var(--line)", strokeWidth: 2 }),
                    Plot.link(data.filter((one) => one.low !== null), { x1: (one) => Math.min(one.low, end), x2: (one) => Math.min(one.high, end), y1: "name", y2: "name", stroke: "var(--ink)", strokeWidth: 1.6, dy: 7 }),
                    Plot.tickX(data.filter((one) => one.atMost !== null), { x: "atMost", y: "name", stroke: "var(--soft)", inset: 7, strokeWidth: 1.5 }),
                    Plot.dot(data, { x: "before", y: "name", r: 4, stroke: "var(--soft)", fill: "var(--paper)" }),
                    Plot.dot(data, { x: "after", y: "name", r: 5, fill: (one) => one.row.finding, stroke: "var(--paper)", className: "after" }),
                ],
            };
        },
    });
}

function climbTable(record) {
    return table(record.rows, [
        { head: "Rung", of: (row) => [row.checkpoint, h("p", { class: "small" }, "after ", row.start_from)] },
        { head: "Change and hypothesis", of: (row) => [prose(row.change), h("p", { class: "small" }, prose(row.hypothesis))], wide: true },
        { head: "Hypothesis is", of: (row) => word(row.finding) },
        { head: "What dominated", of: (row) => text(row.dominates) },
        { head: "Could gain", unit: "s", of: (row) => row.predicted.at_most },
        { head: "Gained", unit: "s", of: (row) => row.gained },
        { head: "Ratio of the request", of: (row) => intervalOf(row) },
        { head: "Decision", of: (row) => (known(row.decision) === null ? row.decision : word(row.decision)) },
        { head: "Evidence", of: (row) => evidenceLinks([row.find, row.bench]) },
    ], { whole: true });
}
