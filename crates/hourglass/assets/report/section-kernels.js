// Captured kernels: what each costs, what limits it, and which lines of its source. Not here: the request's time.

function kernelSection() {
    return [
        panelsOf("capture", capturePanel),
        panelsOf("lines", linesPanel),
    ];
}

function stretchWords(record) {
    const { stretch } = record;
    return `${plural(stretch.steps, "pass", "passes")} in ${duration(stretch.wall_ns)}, ${plural(stretch.sampling.samples, "sample")} by ${words(stretch.sampling.rung)}. A capture is no latency: sampling is inside every time.`;
}

function shareWords(share) {
    return `${percent(share.value)} (${percent(share.low)} to ${percent(share.high)})`;
}

function shareCell(share) {
    return h("span", { class: "interval" }, shareWords(share));
}

function placeName(place) {
    if (place === "barrier_wait") return "waiting at a barrier";
    if (place === "dispatch") return "dispatch";
    return `${place.kernel.operator}: ${place.kernel.kernel}`;
}

function capturePanel(entry) {
    const record = entry.record;
    const tree = known(record.kernels);
    return [
        h("h3", {}, `Kernels of a ${record.workload.phase} pass, ${record.subject.checkpoint}`),
        voidNotice(entry),
        h("p", { class: "lead" }, stretchWords(record)),
        tree ? kernelChart(record, tree) : notice("absent", `No kernels: ${record.kernels.unavailable}. To get them: ${record.kernels.how_to_get}.`),
        counterTables(record),
        instructionTables(record),
        linesOfCapture(entry),
        workloadLine(record.workload, record.workload_id),
        source(entry),
    ];
}

/** Kernels, waits and dispatch with their intervals. */
function kernelChart(record, tree) {
    const rows = [
        ...tree.rows.map((row) => ({ name: `${row.operator}: ${row.kernel}`, cost: row.cost, row, kind: "kernel" })),
        { name: "waiting at a barrier", cost: tree.barrier_wait.cost, row: null, kind: "no kernel" },
        { name: "dispatch", cost: tree.dispatch.cost, row: null, kind: "no kernel" },
    ];
    const drawn = rows.filter((row) => row.cost.samples > 0).sort((a, b) => b.cost.share.value - a.cost.share.value).slice(0, 16);
    const names = drawn.map((row) => row.name);
    const colours = new Map([["kernel", "var(--c1)"], ["no kernel", "var(--c7)"]]);
    const columns = [
        { head: "Rank", form: count, of: (row) => row.row?.rank ?? null },
        { head: "Kernel", of: (row) => h("span", { class: "mono" }, row.name) },
        { head: "Samples", form: count, of: (row) => row.cost.samples },
        { head: "Share (95 % interval)", of: (row) => shareCell(row.cost.share) },
        { head: "Dispatches", form: count, of: (row) => row.row?.dispatches ?? null },
        { head: "Time each", unit: "us", of: (row) => row.row?.per_dispatch ?? null },
        { head: "Per pass", unit: "us", of: (row) => row.row?.per_pass ?? null },
        { head: "Bandwidth", unit: "GB/s", of: (row) => row.row?.bandwidth ?? null },
        { head: "Of the ceiling", unit: "share", of: (row) => row.row?.bandwidth_fraction ?? null },
        { head: "Arithmetic", unit: "GFLOP/s", of: (row) => row.row?.arithmetic_rate ?? null },
        { head: "Of the ceiling", unit: "share", of: (row) => row.row?.arithmetic_fraction ?? null },
        { head: "What limits it", of: (row) => (row.row ? limiterWords(row.row.limiter) : ""), wide: true },
    ];
    const limits = tree.rows.filter((row) => row.cost.samples > 0).slice(0, 6);
    return [
        drawn.length > 0 && chart({
            title: "Share of the workers' time per kernel",
            note: "Line: the 95 % interval. Kernels whose intervals overlap have the same rank: these samples do not tell them apart.",
            label: "Kernels",
            key: legend(colours),
            data: drawn,
            select: 'g[aria-label="bar"] rect',
            describe: (row) => `${row.name}: ${shareWords(row.cost.share)}, ${plural(row.cost.samples, "sample")}.${row.row && known(row.row.limiter.verdict) ? ` Limited by ${words(row.row.limiter.verdict)}, ${row.row.limiter.sure === "none" ? "not sure" : `${row.row.limiter.sure} evidence`}.` : ""}`,
            draw: (width) => {
                const margin = marginFor(names, width);
                return {
                    height: 52 + drawn.length * 24,
                    marginLeft: margin,
                    marginRight: 52,
                    x: { domain: [0, Math.max(...drawn.map((row) => row.cost.share.high)) * 1.05], label: "share of the time", tickFormat: (v) => percent(v, 0), grid: true },
                    y: { domain: names, label: null, tickFormat: (name) => cut(name, margin), tickSize: 0 },
                    color: { domain: [...colours.keys()], range: [...colours.values()] },
                    marks: [
                        Plot.barX(drawn, { x: (row) => row.cost.share.value, y: "name", fill: "kind", insetTop: 4, insetBottom: 4 }),
                        Plot.link(drawn, { x1: (row) => row.cost.share.low, x2: (row) => row.cost.share.high, y1: "name", y2: "name", stroke: "var(--ink)", strokeWidth: 1.6 }),
                        Plot.ruleX([0], { stroke: "var(--ink)" }),
                    ],
                };
            },
            below: details("The numbers as a table", table(rows, columns), h("p", { class: "small" }, tree.method)),
        }),
        limits.length > 0 && [h("h4", {}, "What limits the dearest"), table(limits, [
            { head: "Kernel", of: (row) => h("span", { class: "mono" }, `${row.operator}: ${row.kernel}`) },
            { head: "Limit", of: (row) => (known(row.limiter.verdict) === null ? row.limiter.verdict : words(row.limiter.verdict)) },
            { head: "How sure", of: (row) => row.limiter.sure },
            { head: "How that was inferred", of: (row) => row.limiter.how, wide: true },
        ])],
    ];
}

function limiterWords(limiter) {
    return known(limiter.verdict) === null ? missingWord(limiter.verdict) : `${words(limiter.verdict)} (${limiter.sure})`;
}

function counterTables(record) {
    const tree = known(record.counters);
    if (!tree) return h("p", { class: "small" }, "Counters: ", missingWord(record.counters), ` ${record.counters.unavailable}. To get them: `, prose(record.counters.how_to_get), ".");
    const simulated = known(tree.simulated);
    return aside("Counters",
        table(tree.rows, [
            { head: "Counter", of: (row) => h("code", {}, row.name) },
            { head: "Counted by", of: (row) => words(row.kind) },
            { head: "Over", of: (row) => words(row.origin) },
            { head: "Count", form: (value) => count(Math.round(value)), of: (row) => row.count },
        ]),
        tree.rates.length > 0 && table(tree.rates, [
            { head: "Rate", of: (row) => row.name },
            { head: "Value", form: number, of: (row) => row.value },
            { head: "From", of: (row) => h("code", {}, row.from.join(" / ")) },
        ]),
        simulated && [
            h("p", { class: "small" }, simulated.note),
            table(simulated.functions, [
                { head: "Function", of: (row) => h("span", { class: "mono" }, row.function) },
                { head: `${simulated.event}, own`, form: count, of: (row) => row.own },
                { head: "Share", unit: "share", of: (row) => row.own / simulated.total },
            ]),
        ]);
}

function instructionTables(record) {
    const tree = known(record.instructions);
    if (!tree) return h("p", { class: "small" }, "Instructions of the hot loops: ", missingWord(record.instructions), ` ${record.instructions.unavailable}. To get them: `, prose(record.instructions.how_to_get), ".");
    const loops = tree.kernels.filter((row) => known(row.hot_loop));
    if (loops.length === 0) return null;
    return aside("Instructions of the hot loops", h("p", { class: "small" }, tree.skid), loops.map((row) => [
        h("h4", {}, `${row.operator}: ${row.kernel}`),
        h("p", { class: "small" }, `${plural(row.hot_loop.instructions, "instruction")}, ${plural(row.hot_loop.samples, "sample")} of the kernel's ${count(row.hot_loop.kernel_samples)}. Multiplies with `, text(row.multiplies_with), "."),
        table(row.hot_loop.classes, [
            { head: "Instructions", of: (one) => words(one.class) },
            { head: "In the code", form: count, of: (one) => one.instructions },
            { head: "That also read memory", form: count, of: (one) => one.with_load },
            { head: "Samples", form: count, of: (one) => one.samples },
        ]),
    ]));
}

/** The dearest lines in a capture; all of them where the full record is here too. */
function linesOfCapture(entry) {
    const tree = known(entry.record.lines);
    if (!tree) return h("p", { class: "small" }, "Source lines: ", missingWord(entry.record.lines), ` ${entry.record.lines.unavailable}. To get them: `, prose(entry.record.lines.how_to_get), ".");
    const own = ofKind("lines").some((other) => other.record.workload_id === entry.record.workload_id && other.record.created === entry.record.created);
    if (own) return h("p", { class: "small" }, "The lines of this capture are below.");
    const places = tree.places.filter((place) => place.rows.length > 0).map((place) => ({ ...place, cost: { samples: place.samples } }));
    return [h("h3", {}, "The dearest source lines"), placeTabs(places)];
}
