// Two kernels of one operator at the shapes of a recorded request. Not here: what the request gains, which only its clock shows.

function shapesSection() {
    return ofKind("shapes").map((entry) => {
        const record = entry.record;
        const [first, second] = record.kernels;
        const verdict = valueOf(record.saved);
        const share = valueOf(record.estimated_share);
        return [
            h("h3", {}, `${record.operator}: ${first.label} against ${second.label}`),
            voidNotice(entry),
            coverageNotice(record.coverage),
            h("p", { class: "lead" }, `At every shape of ${record.source}, in its own passes, taking turns. Totals are medians of a pass times its passes.`),
            verdict !== null && h("p", {}, h("b", {}, `${second.label} takes ${quantity(Math.abs(verdict), "s")} ${verdict >= 0 ? "less" : "more"}`),
                share !== null && `, by estimate ${percent(Math.abs(share))} of what was recorded`, ". The request clock decides."),
            shapesChart(record),
            shapesTable(record),
            terms([
                [first.label, [h("code", {}, first.source), ", in all ", reading(record.totals[0])]],
                [second.label, [h("code", {}, second.source), ", in all ", reading(record.totals[1])]],
            ]),
            workloadLine(record.workload, record.workload_id),
            source(entry),
        ];
    });
}

/** Seconds of the whole request at a shape, or null. */
function shapeSeconds(row, kernel) {
    const timing = known(row.timings[kernel]);
    const median = timing && valueOf(timing.median);
    return median === null || median === undefined ? null : (median * row.passes) / 1e6;
}

function shapesChart(record) {
    const name = (row) => `${row.phase} ${row.slot}${row.offset > 0 ? ` at ${count(row.offset)}` : `, ${count(row.pass_rows)} rows`}`;
    const data = record.rows.flatMap((row) => [0, 1].map((kernel) => ({ row, name: name(row), kernel: record.kernels[kernel].label, seconds: shapeSeconds(row, kernel) })))
        .filter((one) => one.seconds !== null);
    if (data.length === 0) return null;
    const [unit, factor] = scaleFor(data.map((one) => one.seconds), "s");
    const names = [...new Set(data.map((one) => one.name))];
    const colours = new Map(record.kernels.map((kernel, index) => [kernel.label, index === 0 ? "var(--c1)" : "var(--c4)"]));
    return chart({
        title: "What each takes of one request, shape by shape",
        label: "Two kernels at the shapes of a request",
        key: legend(colours),
        data,
        select: 'g[aria-label="dot"] circle',
        describe: (one) => `${one.name}, ${one.kernel}: ${number(one.seconds * factor)} ${unit}.`,
        draw: (width) => {
            const margin = marginFor(names, width);
            return {
                height: 56 + names.length * 22,
                marginLeft: margin,
                marginRight: 20,
                x: { domain: [0, Math.max(...data.map((one) => one.seconds)) * factor * 1.05], label: `of one request, ${unit}`, grid: true },
                y: { domain: names, label: null, tickFormat: (of) => cut(of, margin), tickSize: 0 },
                color: { domain: [...colours.keys()], range: [...colours.values()] },
                marks: [Plot.dot(data, { x: (one) => one.seconds * factor, y: "name", r: 4.5, fill: "kernel", stroke: "var(--paper)" })],
            };
        },
    });
}

function shapesTable(record) {
    const one = (kernel) => (row) => known(row.timings[kernel])?.median ?? row.timings[kernel];
    return table(record.rows, [
        { head: "Place", of: (row) => `${row.phase} ${row.slot}` },
        { head: "Shape", of: (row) => h("span", { class: "mono" }, row.shape), wide: true },
        { head: "After tokens", form: count, of: (row) => row.offset },
        { head: "Calls a pass", form: count, of: (row) => row.calls },
        { head: "Passes", form: count, of: (row) => row.passes },
        { head: record.kernels[0].label, unit: "us", of: one(0) },
        { head: record.kernels[1].label, unit: "us", of: one(1) },
        {
            head: "Second over first",
            of: (row) => {
                const [first, second] = [shapeSeconds(row, 0), shapeSeconds(row, 1)];
                return first === null || second === null || first === 0 ? { unavailable: "one of them does not take this shape", how_to_get: "nothing is missing" } : number(second / first, 3);
            },
        },
    ]);
}
