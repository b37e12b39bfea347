// The request clock: how fast each arm was, with every sample and the interval of its difference. Not here: why.

const METRICS = {
    decode: ["Decode", "tokens per second after the first; more is better"],
    prefill: ["Prefill", "prompt tokens per second; more is better"],
    request: ["Whole request", "from set-up to release; less is better"],
    ttft: ["Time to first token", "less is better"],
    token_p95: ["Slow tokens", "the time that 95 % of the tokens stay below; less is better"],
    peak: ["Peak allocation", "the most bytes allocated at once, weights included; less is better"],
};

const METRIC_READING = {
    decode: "decode_rate",
    prefill: "prefill_rate",
    request: "whole_request",
    ttft: "time_to_first_token",
    token_p95: "inter_token_p95",
    peak: "peak_allocation",
};

/** The arms where they are few, so that several clocks can be told apart. */
function clockTitle(record) {
    const names = record.arms.map((arm) => arm.name);
    if (names.length === 1) return `${names[0]} alone`;
    return names.length === 2 ? `${names[1]} against ${names[0]}` : `${names.length} arms in one alternated run`;
}

function clockSection() {
    return panelsOf("bench", (entry) => {
        const record = entry.record;
        const left = record.arms.filter((arm) => !arm.counts);
        return [
            h("h3", {}, clockTitle(record)),
            workloadLine(record.workload, record.workload_id),
            voidNotice(entry),
            coverageNotice(record.coverage),
            h("p", {}, `${plural(record.protocol.repeats, "fresh process", "fresh processes")} per arm, ${record.protocol.design}. The first arm, `, h("b", {}, record.arms[0]?.name ?? "none"), ", is the control that the others are compared with."),
            left.length > 0 && notice("warn", left.map((arm) => `${arm.name} does not count: ${arm.reason ?? "no reason given"}`)),
            tabs("Metric", Object.keys(METRICS).map((metric) => [METRICS[metric][0], metricPanel(record, metric)])),
            noiseTable(record),
            source(entry),
        ];
    });
}

/** One metric of all arms: dots are samples, the stroke is their median, the line the interval of the comparison. */
function metricPanel(record, metric) {
    const rows = record.arms.map((arm, index) => {
        const summary = (arm.summary ?? []).find((row) => row.metric === metric);
        const comparison = record.comparisons.find((row) => row.arm === index && row.metric === metric);
        const samples = record.samples
            .filter((sample) => sample.arm === index && sample.outcome.measured)
            .map((sample) => ({ arm: arm.name, value: valueOf(sample.outcome.measured.clock[METRIC_READING[metric]]), excluded: Boolean(sample.excluded) }))
            .filter((sample) => sample.value !== null);
        return { arm, name: arm.name, index, median: summary?.median, spread: summary?.spread, comparison, samples };
    });
    const unit = rows.map((row) => known(row.median)?.unit).find(Boolean);
    const ratioCell = (row) => row.index === 0 ? "control" : row.comparison ? intervalOf(row.comparison) : notCompared(row);
    const columns = [
        { head: "Arm", of: (row) => row.name },
        { head: "Median", unit: unit ?? "s", of: (row) => row.median ?? { unavailable: row.arm.reason ?? "no sample of it counts", how_to_get: "run it again" } },
        { head: "Spread (median absolute deviation)", unit: unit ?? "s", of: (row) => row.spread ?? { unavailable: row.arm.reason ?? "no sample of it counts", how_to_get: "run it again" } },
        { head: "Samples", form: count, of: (row) => row.samples.length },
        { head: `Against the control (${percent(record.protocol.confidence, 0)} interval)`, of: ratioCell },
        { head: "Verdict", of: (row) => row.comparison ? verdictOf(row.comparison) : "", wide: true },
    ];
    const drawn = rows.filter((row) => valueOf(row.median) !== null);
    if (drawn.length === 0) return [h("p", {}, "No arm has this metric."), table(rows, columns)];
    const control = valueOf(drawn[0].index === 0 ? drawn[0].median : null);
    const samples = drawn.flatMap((row) => row.samples);
    const largest = Math.max(...samples.map((sample) => sample.value), ...drawn.map((row) => valueOf(row.median)));
    const [unitName, factor] = scaleFor([largest], unit);
    const end = largest * 1.12 * factor;
    const data = drawn.map((row) => {
        const interval = known(row.comparison?.interval);
        // An interval of several times its value says that there were too few samples, and nothing else.
        const spans = interval && control !== null && interval.high / interval.low < 4;
        return {
            ...row,
            value: valueOf(row.median) * factor,
            low: spans ? Math.min(control * interval.low * factor, end) : null,
            high: spans ? Math.min(control * interval.high * factor, end) : null,
            unknown: Boolean(interval) && !spans,
            last: Math.max(valueOf(row.median), ...row.samples.map((sample) => sample.value)) * factor,
        };
    });
    const wide = data.filter((row) => row.unknown).map((row) => row.name);
    const names = data.map((row) => row.name);
    return chart({
        title: `${METRICS[metric][0]}: ${METRICS[metric][1]}`,
        note: `Bar: median. Dots: every sample that was measured. Thin line: where the arm lies with ${percent(record.protocol.confidence, 0)} confidence, as the control's median times the interval of the paired ratio.` + (wide.length > 0 ? ` Too few samples for an interval worth drawing: ${wide.join(", ")}.` : ""),
        data,
        select: 'g[aria-label="bar"] rect',
        describe: (row) => `${row.name}: ${number(row.value)} ${unitName}, ${plural(row.samples.length, "sample")}. ${row.comparison?.sentence ?? (row.index === 0 ? "The control." : "")}`,
        draw: (width) => {
            const margin = marginFor(names, width);
            return {
                height: 52 + data.length * 30,
                marginLeft: margin,
                marginRight: 56,
                x: { domain: [0, end], label: unitName, grid: true },
                y: { domain: names, label: null, tickFormat: (name) => cut(name, margin), tickSize: 0 },
                marks: [
                    Plot.barX(data, { x: "value", y: "name", fill: (row) => (row.index === 0 ? "var(--c7)" : "var(--c1)"), fillOpacity: 0.55, insetTop: 4, insetBottom: 4 }),
                    Plot.dot(samples, { x: (sample) => sample.value * factor, y: "arm", r: 2.5, fill: "var(--ink)", fillOpacity: 0.55, stroke: "none" }),
                    Plot.link(data.filter((row) => row.low !== null), { x1: "low", x2: "high", y1: "name", y2: "name", stroke: "var(--ink)", strokeWidth: 1.6, dy: 9 }),
                    Plot.text(data, { x: "last", y: "name", text: (row) => number(row.value), textAnchor: "start", dx: 8, fill: "currentColor", stroke: "var(--paper)", strokeWidth: 3, fontWeight: 600 }),
                    Plot.ruleX([0], { stroke: "var(--ink)" }),
                ],
            };
        },
        below: behind(rows, columns),
    });
}

function notCompared(row) {
    return { unavailable: row.arm.reason ?? "it was not compared in this metric", how_to_get: "run more repeats" };
}

/** `1.24 × (1.20 to 1.28)`. */
function intervalOf(comparison) {
    const ratio = valueOf(comparison.ratio);
    if (ratio === null) return comparison.ratio;
    const interval = known(comparison.interval);
    if (!interval) return [`${number(ratio)} × `, missingWord(comparison.interval)];
    const far = (side) => (side > 1e3 || side < 1e-3 ? side.toExponential(0) : number(side));
    return h("span", { class: "interval" }, `${number(ratio)} × (${far(interval.low)} to ${far(interval.high)})`);
}

/** A verdict in words; the whole sentence is in the record. */
function verdictOf(comparison) {
    const verdict = known(comparison.verdict);
    if (!verdict) return missingWord(comparison.verdict);
    if (typeof verdict === "string") return word(verdict);
    if (verdict.no_difference) return word("no_difference", `no difference seen within ${number(verdict.no_difference.within_percent, 2)} %`);
    if (verdict.inconclusive) return word("inconclusive", `inconclusive: about ${count(verdict.inconclusive.more_repeats)} more repeats`);
    return words(Object.keys(verdict)[0]);
}

function noiseTable(record) {
    const rows = known(record.noise);
    if (!rows) return h("p", { class: "small" }, "This machine's noise: ", missingWord(record.noise), " ", record.noise?.unavailable);
    const far = (value) => (value > 1e3 ? "more than 1,000" : number(value));
    return aside("What this machine's noise allows", table(rows.filter((row) => METRICS[row.metric]), [
        { head: "Metric", of: (row) => METRICS[row.metric][0] },
        { head: "Difference between two samples of the same", unit: "share", of: (row) => row.pair_spread },
        { head: "How often a difference is seen where there is none", unit: "share", of: (row) => row.false_positives },
        { head: "Smallest difference found four times out of five, in %", of: (row) => known(row.detectable_percent) === null ? row.detectable_percent : far(row.detectable_percent) },
        { head: "Samples per arm to find 3 %", of: (row) => known(row.repeats_for_3_percent) === null ? row.repeats_for_3_percent : count(row.repeats_for_3_percent) },
    ]));
}
