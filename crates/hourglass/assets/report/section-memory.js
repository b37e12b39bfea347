// Memory: the peak of each request, and what of it is weights, keys and values, and the rest. Not here: bytes moved.

function memorySection() {
    const rows = [];
    for (const entry of ofKind("bench")) {
        entry.record.arms.forEach((arm) => {
            const of = (metric) => (arm.summary ?? []).find((row) => row.metric === metric)?.median
                ?? { unavailable: arm.reason ?? "no sample of it counts", how_to_get: "run it again" };
            rows.push({ entry, name: arm.name, workload: entry.record.workload, id: entry.record.workload_id, peak: of("peak"), rss: of("peak_rss"), kv: null });
        });
    }
    for (const entry of ofKind("find")) {
        const clock = known(entry.record.request);
        if (clock) rows.push({ entry, name: known(entry.record.subject)?.checkpoint ?? "the request", workload: entry.record.workload, id: entry.record.workload_id, peak: clock.peak_allocation, rss: clock.peak_rss, kv: null });
    }
    for (const entry of ofKind("timeline")) {
        rows.push({ entry, name: entry.record.subject.checkpoint, workload: entry.record.workload, id: entry.record.workload_id, peak: entry.record.peak_allocation, rss: null, kv: entry.record.kv_allocation });
    }
    for (const row of rows) {
        const parts = known(row.entry.record.ranking)?.memory ?? [];
        const part = (name) => parts.find((one) => one.name === name)?.bytes ?? null;
        row.kv ??= part("keys and values");
        row.weights = part("weights");
        row.both = part("weights and scratch");
        row.scratch = part("scratch");
    }
    return groupBy(rows, (row) => row.id).map(([id, same]) => [memoryChart(same), workloadLine(same[0].workload, id)]);
}

function memoryChart(rows) {
    const drawn = rows.filter((row) => valueOf(row.peak) !== null);
    const columns = [
        { head: "What ran", of: (row) => row.name },
        { head: "Record", of: (row) => h("a", { href: `#record-${row.entry.index}` }, row.entry.name) },
        { head: "Peak allocation", unit: "B", of: (row) => row.peak },
        ...(rows.some((row) => row.weights) ? [{ head: "Of which weights", unit: "B", of: (row) => row.weights }] : []),
        ...(rows.some((row) => row.kv) ? [{ head: "Of which keys and values", unit: "B", of: (row) => row.kv }] : []),
        ...(rows.some((row) => row.both) ? [{ head: "Of which weights and scratch", unit: "B", of: (row) => row.both }] : []),
        ...(rows.some((row) => row.scratch) ? [{ head: "Of which scratch", unit: "B", of: (row) => row.scratch }] : []),
        { head: "Peak physical memory", unit: "B", of: (row) => row.rss },
    ];
    if (drawn.length === 0) return table(rows, columns);
    const parts = drawn.flatMap((row) => {
        const label = drawn.filter((other) => other.name === row.name).length > 1 ? `${row.name} (${row.entry.schema.split("/")[0]} ${row.entry.id.slice(0, 4)})` : row.name;
        const named = [["weights", valueOf(row.weights)], ["weights and scratch", valueOf(row.both)], ["keys and values", valueOf(row.kv)], ["scratch", valueOf(row.scratch)]].filter(([, bytes]) => bytes !== null);
        const rest = valueOf(row.peak) - named.reduce((sum, [, bytes]) => sum + bytes, 0);
        return [...named, ...(rest > 0 ? [[named.length > 0 ? "the rest" : "not told apart", rest]] : [])].map(([part, bytes]) => ({ row, label, part, bytes }));
    });
    const labels = [...new Set(parts.map((part) => part.label))];
    const [unit, factor] = scaleFor(drawn.map((row) => valueOf(row.peak)), "B");
    const colours = new Map(["weights", "weights and scratch", "keys and values", "scratch", "the rest", "not told apart"]
        .filter((name) => parts.some((part) => part.part === name))
        .map((name) => [name, { weights: "var(--c1)", "weights and scratch": "var(--c1)", "not told apart": "var(--c1)", "keys and values": "var(--c2)", scratch: "var(--c3)" }[name] ?? "var(--c7)"]));
    return chart({
        title: "The most that was allocated at once during a request",
        note: "Resident weights included: it is what the request's process held, not what the request needed on top. Physical memory, which counts file pages too, is in the table.",
        label: "Peak allocation",
        key: legend(colours),
        data: parts,
        select: 'g[aria-label="bar"] rect',
        describe: (part) => `${part.label}: ${part.part === "not told apart" ? "" : `${part.part}, `}${number(part.bytes * factor)} ${unit} of ${number(valueOf(part.row.peak) * factor)} ${unit}.`,
        draw: (width) => {
            const margin = marginFor(labels, width);
            return {
                height: 52 + labels.length * 24,
                marginLeft: margin,
                marginRight: 24,
                x: { label: unit, grid: true },
                y: { domain: labels, label: null, tickFormat: (name) => cut(name, margin), tickSize: 0 },
                color: { domain: [...colours.keys()], range: [...colours.values()] },
                marks: [
                    Plot.barX(parts, { x: (part) => part.bytes * factor, y: "label", fill: "part", inset: 3, insetLeft: 0.25, insetRight: 0.25, order: [...colours.keys()] }),
                    Plot.ruleX([0], { stroke: "var(--ink)" }),
                ],
            };
        },
        below: behind(rows, columns),
    });
}
