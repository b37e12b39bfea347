// The timeline's summary: who was busy when, the gaps and their causes, and steps that took long. Not here: every slice.

const CAUSES = {
    steal: "steal",
    descheduled: "descheduled",
    page_fault: "page fault",
    sampling: "sampling",
    tokenising: "tokenising",
    dispatch: "dispatch",
    setup: "set-up",
    barrier: "barrier",
    unexplained: "unexplained",
};

const CAUSE_MEANING = {
    steal: "the hypervisor ran something else",
    descheduled: "another thread had its processor",
    page_fault: "a page of memory was brought in",
    sampling: "the main thread chose a token",
    tokenising: "the main thread turned text into tokens or back",
    dispatch: "the main thread was starting the work",
    setup: "the main thread made or released input and cache",
    barrier: "a worker had done its share and another had not",
    unexplained: "nothing that was recorded says why",
};

function causeName(cause) {
    return CAUSES[cause] ?? words(cause);
}

function timelineSection() {
    return panelsOf("timeline", (entry) => {
        const record = entry.record;
        const summary = record.summary;
        const busy = valueOf(summary.device.busy_share);
        return [
            h("h3", {}, record.subject.checkpoint),
            voidNotice(entry),
            coverageNotice(summary.coverage),
            h("p", {}, "At least one worker computed for ", h("b", {}, busy === null ? missingWord(summary.device.busy_share) : percent(busy)),
                ` of ${duration(summary.wall_ns)}; for ${duration(summary.device.idle_ns)} none did.`),
            summary.lanes.length > 0 && laneChart(summary),
            stripChart(summary),
            gapTable(summary),
            summary.steps.filter((series) => series.steps.length > 2).map(stepChart),
            operatorBalance(summary),
            timelineFacts(record),
            workloadLine(record.workload, record.workload_id),
            source(entry),
        ];
    });
}

/** Busy and idle by cause of every lane, as parts of the window. */
function laneChart(summary) {
    const lanes = [...(summary.lanes.length > 1 ? [{ name: "any worker", occupation: summary.device }] : []), ...summary.lanes];
    const parts = lanes.flatMap((lane) => [
        { lane: lane.name, part: "busy", ns: lane.occupation.busy_ns },
        ...lane.occupation.idle_by_cause.map((time) => ({ lane: lane.name, part: causeName(time.cause), ns: time.wall_ns, cause: time.cause })),
    ]);
    const colours = coloursFor(parts.map((part) => part.part));
    const names = lanes.map((lane) => lane.name);
    return chart({
        title: "Busy and idle, by cause",
        note: "“Busy” is the union of all intervals in which an operator ran and had its processor. Everything else has a cause; together they are the whole time.",
        label: "Time of each worker",
        key: legend(colours),
        data: parts,
        select: 'g[aria-label="bar"] rect',
        describe: (part) => `${part.lane}: ${part.part}${part.cause && CAUSE_MEANING[part.cause] ? ` (${CAUSE_MEANING[part.cause]})` : ""}, ${duration(part.ns)}, ${percent(part.ns / summary.wall_ns)}.`,
        draw: (width) => {
            const margin = marginFor(names, width);
            return {
                height: 60 + names.length * 28,
                marginLeft: margin,
                marginRight: 20,
                x: { label: "share of the time", tickFormat: (v) => `${Math.round(100 * v)} %`, domain: [0, 1], ticks: 5 },
                y: { domain: names, label: null, tickFormat: (name) => cut(name, margin), tickSize: 0 },
                color: { domain: [...colours.keys()], range: [...colours.values()] },
                marks: [Plot.barX(parts, { x: (part) => part.ns / summary.wall_ns, y: "lane", fill: "part", inset: 4, insetLeft: 0.25, insetRight: 0.25, order: [...colours.keys()] })],
            };
        },
        below: behind(parts, [
            { head: "Worker", of: (part) => part.lane },
            { head: "What", of: (part) => part.part },
            { head: "Meaning", of: (part) => CAUSE_MEANING[part.cause] ?? "an operator ran" },
            { head: "Time", unit: "s", of: (part) => part.ns / 1e9 },
            { head: "Share", unit: "share", of: (part) => part.ns / summary.wall_ns },
        ]),
    });
}

/** The request along its time: its steps, and the longest stretches in which nobody computed. */
function stripChart(summary) {
    const [unit, factor] = scaleFor([summary.wall_ns / 1e9], "s");
    const at = (ns) => (ns / 1e9) * factor;
    const steps = summary.steps.flatMap((series) => series.steps.map((step, index) => ({
        row: "steps", part: /prefill/.test(series.name) ? "prefill" : "decode", label: `${series.name} ${index + 1}`, start: step.start_ns, end: step.start_ns + step.wall_ns,
    })));
    const gaps = summary.gaps.map((gap) => ({
        row: "nobody busy", part: causeName(gap.by_cause[0]?.cause ?? "unexplained"), label: "gap", start: gap.start_ns, end: gap.start_ns + gap.wall_ns, gap,
    }));
    const data = [...steps, ...gaps];
    if (data.length === 0) return null;
    const colours = coloursFor(data.map((one) => one.part));
    return chart({
        title: "The request along its time",
        note: "Above, its steps; below, the longest stretches in which no worker computed, by what each was lost to. Very short ones are drawn one pixel wide.",
        label: "Strip of the request",
        key: legend(colours),
        data,
        select: 'g[aria-label="rect"] rect',
        describe: (one) => `${one.label}: from ${number(at(one.start))} ${unit}, ${duration(one.end - one.start)}` + (one.gap ? `, ${one.gap.by_cause.map((time) => `${causeName(time.cause)} ${duration(time.wall_ns)}`).join(", ")}` : "") + ".",
        draw: () => ({
            height: 128,
            marginLeft: 96,
            marginRight: 16,
            x: { domain: [0, at(summary.wall_ns)], label: unit },
            y: { type: "band", domain: gaps.length > 0 ? ["steps", "nobody busy"] : ["steps"], label: null, tickSize: 0, padding: 0.25 },
            color: { domain: [...colours.keys()], range: [...colours.values()] },
            marks: [
                Plot.rectX(data, { x1: (one) => at(one.start), x2: (one) => at(one.end), y: "row", fill: "part", stroke: "part", strokeWidth: 0.6, insetLeft: 0.3, insetRight: 0.3 }),
            ],
        }),
    });
}

function gapTable(summary) {
    if (summary.gaps.length === 0) return h("p", { class: "small" }, "No stretch without a busy worker was recorded.");
    const rows = summary.gaps.map((gap, index) => ({ ...gap, index }));
    return details(`The ${rows.length} longest gaps, and what the processor did inside them`, table(rows, [
        { head: "#", form: count, of: (gap) => gap.index + 1 },
        { head: "From", unit: "s", of: (gap) => gap.start_ns / 1e9 },
        { head: "Length", unit: "s", of: (gap) => gap.wall_ns / 1e9 },
        { head: "Causes", of: (gap) => gap.by_cause.map((time) => `${causeName(time.cause)} ${duration(time.wall_ns)}`).join(", "), wide: true },
        { head: "CPU samples", form: count, of: (gap) => gap.samples },
        { head: "Functions", of: (gap) => h("span", { class: "mono" }, gap.top.map((one) => `${one.function} (${one.samples})`).join(", ")) },
    ]));
}

/** How long each step took, and why some took longer. */
function stepChart(series) {
    const outliers = known(series.outliers) ?? [];
    const why = (index) => outliers.find((one) => one.step === index);
    const [unit, factor] = scaleFor([valueOf(series.median) ?? 0], "s");
    const rows = series.steps.map((step, index) => ({ index, value: (step.wall_ns / 1e9) * factor, outlier: why(index) }));
    const kind = (outlier) => {
        const cause = known(outlier.cause);
        if (!cause) return "nothing grew by half of it";
        const what = cause.what;
        if (typeof what === "object" && what.idle) return causeName(what.idle);
        return typeof what === "object" && what.operator ? `computing ${what.operator}` : words(what);
    };
    return [
        chart({
            title: `How long each ${series.name} took`,
            note: `Median ${number((valueOf(series.median) ?? 0) * factor)} ${unit}.` + (outliers.length > 0 ? " Filled: far above the median." : ""),
            label: `Steps of ${series.name}`,
            data: rows,
            select: 'g[aria-label="dot"] circle',
            describe: (row) => `Step ${row.index + 1}: ${number(row.value)} ${unit}${row.outlier ? `, ${duration(row.outlier.excess_ns)} above the median: ${kind(row.outlier)}` : ""}.`,
            draw: () => ({
                height: 160,
                marginLeft: 56,
                marginRight: 16,
                x: { label: "step", domain: [0.5, rows.length + 0.5], ticks: Math.min(rows.length, 10), tickFormat: (v) => (Number.isInteger(v) ? String(v) : "") },
                y: { label: unit, grid: true, zero: true, nice: true, ticks: 4 },
                marks: [
                    Plot.ruleY([(valueOf(series.median) ?? 0) * factor], { stroke: "var(--soft)", strokeDasharray: "3 3" }),
                    Plot.dot(rows, { x: (row) => row.index + 1, y: "value", r: (row) => (row.outlier ? 4.5 : 3), fill: (row) => (row.outlier ? "var(--c4)" : "none"), stroke: (row) => (row.outlier ? "var(--c4)" : "var(--c1)") }),
                ],
            }),
        }),
        outliers.length > 0 && table(outliers, [
            { head: "Step", form: count, of: (one) => one.step + 1 },
            { head: "Took", unit: "s", of: (one) => one.wall_ns / 1e9 },
            { head: "Above the median", unit: "s", of: (one) => one.excess_ns / 1e9 },
            { head: "What grew", of: kind },
        ]),
    ];
}

function operatorBalance(summary) {
    const rows = summary.operators.filter((row) => known(row.imbalance));
    if (rows.length === 0) return null;
    rows.sort((a, b) => b.imbalance.lost_ns - a.imbalance.lost_ns);
    return details("How evenly the workers shared each operator", table(rows, [
        { head: "Operator", of: (row) => row.operator },
        { head: "Calls", form: count, of: (row) => row.calls[0] ?? 0 },
        { head: "Slowest worker", of: (row) => row.imbalance.slowest },
        { head: "Above the mean", unit: "share", of: (row) => row.imbalance.slowest_over_mean },
        { head: "Perfect sharing would save", unit: "s", of: (row) => row.imbalance.lost_ns / 1e9 },
    ]));
}

function timelineFacts(record) {
    const overhead = known(record.overhead);
    const share = overhead && valueOf(overhead.share);
    const cost = overhead === null || share === null
        ? [missingWord(overhead?.share ?? record.overhead), ` ${(overhead?.share ?? record.overhead).unavailable ?? ""}`]
        : `${percent(share)} (${[overhead.low, overhead.high].map((side) => (valueOf(side) === null ? "?" : percent(valueOf(side)))).join(" to ")}) of the request`;
    return terms([
        ["Main thread on a processor", reading(record.main_thread_cpu)],
        ["What tracing cost", cost],
        ["CPU samples", `${count(record.sampling.samples)}, by ${words(record.sampling.rung)} (${record.sampling.why})`],
        ["Lost samples", known(record.sampling.lost) === null ? missingWord(record.sampling.lost) : count(record.sampling.lost)],
    ]);
}
