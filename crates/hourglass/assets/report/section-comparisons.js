// Two sides of one workload: what became of a change. Not here: making a comparison, and deciding by it.

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
                height: 52 + names.length * 36,
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

const OUTCOMES = {
    target_fell_request_faster: ["good", "The target fell and the request got faster"],
    target_fell_request_unmoved: ["warn", "The target fell, but the request did not move"],
    request_slower: ["bad", "The request got slower"],
    request_faster_target_did_not_fall: ["warn", "The request got faster, but the target did not fall"],
    request_faster: ["good", "The request got faster"],
    target_did_not_fall: ["warn", "The target did not fall"],
    no_difference: ["warn", "No difference seen"],
    inconclusive: ["warn", "Inconclusive"],
    void: ["bad", "Void: nothing was compared"],
};

/** The outcome in colour, then its sentence, most of which begin with the outcome: it is not said twice. */
function outcomeWords(outcome, sentence) {
    const [kind, shown] = OUTCOMES[outcome] ?? ["", words(outcome)];
    const repeated = sentence.toLowerCase().startsWith(`${shown.toLowerCase()}: `);
    return [h("span", { class: `word ${kind}` }, shown), repeated ? prose(sentence.slice(shown.length)) : [". ", prose(sentence)]];
}

/** Two sides, view by view (`comparison/1`). */
function comparisonPanel(entry) {
    const record = entry.record;
    const { outcome } = record;
    const request = known(record.request);
    const replays = known(record.replays);
    const timeline = known(record.timeline);
    const wiring = known(record.wiring);
    const suspicious = record.different.filter((one) => one.kind === "suspicious");
    return [
        h("h3", {}, `${record.before.name} and ${record.after.name}`),
        voidNotice(entry),
        h("p", { class: "verdict" }, outcomeWords(outcome.outcome, outcome.sentence)),
        outcome.because.length > 0 && h("ul", {}, outcome.because.map((line) => h("li", {}, prose(line)))),
        h("p", {}, "Next: ", prose(outcome.next)),
        suspicious.length > 0 && notice("warn", ["Besides the change, these differ, and may be what made the difference:", ...suspicious.map((one) => `${one.what}: ${one.before} before, ${one.after} after`)]),
        request ? [deltaChart("The request, after over before", request.rows, request.design), tokensLine(request.tokens_equal)] : missingLine("The request", record.request),
        replays
            ? replays.map((view) => [
                deltaChart(`Operators of ${view.phase}, after over before`, [...view.groups, view.total], view.in_turn ? "Replayed in turn in one process." : view.same_run ? "Replayed one after the other in one process." : "Replayed in different processes."),
                h("p", { class: "small" }, "Of what the replay saved per pass, ", valueOf(view.arrived) === null ? missingWord(view.arrived) : percent(valueOf(view.arrived), 0), " arrived in the request."),
            ])
            : missingLine("The operators", record.replays),
        (record.captures ? known(record.captures) ?? [] : []).map((view) => [
            deltaChart(`Kernels of a captured ${view.phase} step, after over before`, view.rows.map((row) => row.per_pass), "Two runs, tracing in both: where the time is, never how long a request takes."),
            details("Their parts of the samples, and what a call takes", table(view.rows, [
                { head: "Operator", of: (row) => row.operator },
                { head: "Samples before", unit: "share", of: (row) => row.share_before },
                { head: "After", unit: "share", of: (row) => row.share_after },
                { head: "A call before", unit: "us", of: (row) => row.call_before },
                { head: "After", unit: "us", of: (row) => row.call_after },
            ])),
        ]),
        timeline && table([timeline.busy], deltaColumns()),
        wiring && [wiring.changed.length > 0 && details("Kernels that differ", table(wiring.changed, [
            { head: "Phase", of: (one) => one.phase },
            { head: "Operator", of: (one) => one.operator },
            { head: "Before", of: (one) => h("span", { class: "mono" }, one.before.join(", ")), wide: true },
            { head: "After", of: (one) => h("span", { class: "mono" }, one.after.join(", ")), wide: true },
        ])), !wiring.reached && notice("bad", "The change reaches no call: both sides ran exactly the same code.")],
        record.gates.length > 0 && [h("h4", {}, "Conditions that were asked"), ruleTable(record.gates)],
        record.left_out.length > 0 && details("Left out", h("ul", { class: "small" }, record.left_out.map((line) => h("li", {}, line)))),
        h("p", { class: "small" }, "Evidence: ", evidenceLinks([...record.before.evidence, ...record.after.evidence])),
        workloadLine(record.workload, record.workload_id),
        source(entry),
    ];
}

function missingLine(what, of) {
    return h("p", { class: "small" }, `${what}: `, missingWord(of), ` ${of.unavailable}. To get it: `, prose(of.how_to_get), ".");
}

function tokensLine(equal) {
    const same = known(equal);
    if (same === null) return missingLine("Whether both made the same tokens", equal);
    return same ? h("p", { class: "small" }, "Both sides made the same tokens.") : notice("warn", "The two sides made different tokens.");
}

function deltaColumns() {
    return [
        { head: "What", of: (row) => words(row.name.replace(/^replay\.\w+\./, "")) },
        { head: "Before", of: (row) => (valueOf(row.before) === null ? row.before : reading(row.before)) },
        { head: "After", of: (row) => (valueOf(row.after) === null ? row.after : reading(row.after)) },
        { head: "After over before (interval)", of: (row) => intervalOf(row) },
        { head: "Verdict", of: (row) => verdictOf(row) },
        { head: "Made by", of: (row) => words(row.method) },
    ];
}

const RATIO_COLOURS = { better: "var(--c3)", worse: "var(--c4)", other: "var(--c7)" };

/** Ratios with their intervals around 1; which way is better is in the verdict's colour. */
function deltaChart(title, rows, note) {
    const drawn = rows.map((row) => {
        const interval = known(row.interval);
        const verdict = known(row.verdict);
        return { row, name: words(row.name.replace(/^replay\.\w+\./, "")), ratio: valueOf(row.ratio), low: interval?.low ?? null, high: interval?.high ?? null, kind: verdict === "better" || verdict === "worse" ? verdict : "other" };
    }).filter((one) => one.ratio !== null && one.ratio > 0);
    if (drawn.length === 0) return table(rows, deltaColumns());
    const near = (value) => Math.min(Math.max(value, 0.1), 10);
    const ends = drawn.flatMap((one) => [one.ratio, one.low ?? one.ratio, one.high ?? one.ratio, 1]).map(near);
    const domain = [Math.min(...ends) / 1.08, Math.max(...ends) * 1.08];
    const names = drawn.map((one) => one.name);
    const colours = new Map(Object.entries(RATIO_COLOURS).filter(([kind]) => drawn.some((one) => one.kind === kind)));
    const shown = new Map([...colours].map(([kind, colour]) => [kind === "other" ? "no verdict, or no difference" : kind, colour]));
    return chart({
        title,
        note: `${note} 1 is no change; the axis is logarithmic.`,
        label: title,
        key: legend(shown, true),
        data: drawn,
        select: 'g[aria-label="dot"] circle',
        describe: (one) => one.row.sentence,
        draw: (width) => {
            const margin = marginFor(names, width);
            return {
                height: 56 + drawn.length * 22,
                marginLeft: margin,
                marginRight: 20,
                x: { type: "log", domain, label: "after over before", ticks: 6, tickFormat: (value) => String(Number(value.toPrecision(2))), grid: true },
                y: { domain: names, label: null, tickFormat: (name) => cut(name, margin), tickSize: 0 },
                color: { domain: [...colours.keys()], range: [...colours.values()] },
                marks: [
                    Plot.ruleX([1], { stroke: "var(--ink)" }),
                    Plot.link(drawn.filter((one) => one.low !== null), { x1: (one) => near(one.low), x2: (one) => near(one.high), y1: "name", y2: "name", stroke: "kind", strokeWidth: 2 }),
                    Plot.dot(drawn, { x: (one) => near(one.ratio), y: "name", r: 4.5, fill: "kind", stroke: "var(--paper)" }),
                ],
            };
        },
        below: behind(rows, deltaColumns()),
    });
}
