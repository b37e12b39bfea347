// Operators under the machine's measured ceilings. Not here: what they cost (section-operators.js).

/** The ceilings with the number of threads that a replay used, or the most there are. */
function ceilingsFor(threads) {
    const rows = ofKind("ceilings").flatMap((entry) => (entry.record.threads ?? []).map((row) => ({ entry, row })));
    return rows.find(({ row }) => row.threads === threads) ?? rows.sort((a, b) => b.row.threads - a.row.threads)[0] ?? null;
}

/** The largest sample: other load can only take away from a rate. */
function highest(measured) {
    const samples = known(measured)?.samples ?? [];
    return samples.length > 0 ? Math.max(...samples) : null;
}

/** Slanted roofs: {name, rate} in GB/s, one per level, the best of its numbers of streams. */
function slantedRoofs(row) {
    const best = new Map();
    for (const one of row.bandwidth) {
        const rate = highest(one.rate);
        if (one.traffic === "read" && rate !== null && rate > (best.get(one.level) ?? 0)) best.set(one.level, rate);
    }
    const named = { memory: "memory", l3: "L3 cache", l2: "L2 cache" };
    return [...best].map(([level, rate]) => ({ name: named[level] ?? level, rate }));
}

/** Flat roofs: {name, rate} in GFLOP/s, each instruction as a matrix kernel feeds it. */
function flatRoofs(row) {
    const best = new Map();
    for (const one of row.peaks) {
        const rate = highest(one.rate);
        if (rate === null || (one.operands === "registers" && row.peaks.some((other) => other.path === one.path && other.operands === "loads" && known(other.rate)))) continue;
        best.set(one.path, rate);
    }
    return [...best].map(([name, rate]) => ({ name, rate }));
}

function rooflineSection() {
    const ceilings = ofKind("ceilings");
    if (ceilings.length === 0) return [];
    const cases = replayCases().filter((one) => known(one.replay.operators) && one.replay.coverage.complete);
    const shapes = groupBy(cases, (one) => one.replay.workload_id);
    const panels = shapes.flatMap(([, same]) => same.map((one) => [`${one.name}, ${one.replay.workload.phase}`, roofline(one)]));
    const bare = () => {
        const found = ceilingsFor(null);
        return found && [h("p", {}, "No replayed operators to put under the roofs: ", h("code", {}, "hourglass replay --json-output FILE"), " writes them."), roofTables(found.row)];
    };
    return [
        panels.length > 0 ? tabs("Case", panels) : bare(),
        ceilings.map((entry) => [voidNotice(entry), source(entry)]),
    ];
}

const MARGINS = { marginLeft: 56, marginRight: 16, marginTop: 28, marginBottom: 40 };

function heightFor(width) {
    return Math.round(Math.min(460, Math.max(320, width * 0.55)));
}

/** A tick's label: powers of ten alone. */
function decade(value) {
    const power = Math.log10(value);
    return Math.abs(power - Math.round(power)) < 1e-6 ? Number(value.toPrecision(1)).toLocaleString("en-US") : "";
}

function threadsOf(one) {
    const conditions = known(one.entry.record.conditions) ?? known((one.entry.record.cases ?? []).find((row) => row.replay === one.replay)?.conditions);
    return conditions?.threads ?? null;
}

function roofline(one) {
    const found = ceilingsFor(threadsOf(one));
    if (!found) return notice("absent", "No ceilings have a row of threads.");
    const [slanted, flat] = [slantedRoofs(found.row), flatRoofs(found.row)];
    const points = known(one.replay.operators).map((row) => {
        const bytes = row.row.bytes_read + row.row.bytes_written;
        return {
            name: row.slot === row.operator ? row.slot : `${row.slot} (${row.operator})`,
            group: row.row.group,
            share: valueOf(row.row.timing.share) ?? 0,
            intensity: bytes > 0 ? row.row.flops / bytes : 0,
            rate: valueOf(row.row.arithmetic),
            bandwidth: row.row.bandwidth,
            floor: known(row.row.floor),
            row,
        };
    }).filter((point) => point.rate !== null && point.rate > 0 && point.intensity > 0);
    const without = known(one.replay.operators).length - points.length;
    if (points.length === 0 || slanted.length + flat.length === 0) return [h("p", {}, "Nothing here computes and moves bytes, or no roof was measured."), roofTables(found.row)];
    const x = [Math.min(...points.map((point) => point.intensity)) / 3, Math.max(...points.map((point) => point.intensity)) * 8];
    const roof = Math.max(...flat.map((one) => one.rate), ...points.map((point) => point.rate));
    const y = [Math.min(...points.map((point) => point.rate)) / 4, roof * 2.5];
    const colours = coloursFor(points.map((point) => point.group));
    // Both axes are logarithmic, so that all slanted roofs have one angle, which their names follow.
    const slope = (width) => {
        const across = (width - MARGINS.marginLeft - MARGINS.marginRight) / Math.log10(x[1] / x[0]);
        const up = (heightFor(width) - MARGINS.marginTop - MARGINS.marginBottom) / Math.log10(y[1] / y[0]);
        return (-180 / Math.PI) * Math.atan2(up, across);
    };
    const slants = slanted.map((line) => {
        const to = Math.min(x[1], (flat.length > 0 ? Math.max(...flat.map((one) => one.rate)) : y[1]) / line.rate);
        const from = Math.max(x[0], y[0] / line.rate);
        return { ...line, x1: from, y1: from * line.rate, x2: to, y2: to * line.rate };
    }).filter((line) => line.x2 > line.x1);
    const flats = flat.map((line) => ({ ...line, from: Math.max(x[0], Math.min(...slanted.map((one) => line.rate / one.rate), x[1])) }));
    // Roofs that lie too close together for a name each share one.
    const labels = [];
    for (const line of [...flats].sort((a, b) => b.rate - a.rate)) {
        const above = labels.at(-1);
        const name = `${line.name} ${number(line.rate)}`;
        if (above && above.rate / line.rate < 1.25) above.name = `${above.name}, ${name}`;
        else labels.push({ rate: line.rate, name });
    }
    return [
        chart({
            title: `Operators of ${one.name} under the roofs, ${workloadTitle(one.replay.workload).toLowerCase()}`,
            note: "Right: more arithmetic per byte. Up: more arithmetic per second. A point on a slanted line is limited by bringing bytes from there; on a flat one by that instruction. The distance to the line is what could be gained. Size: share of the replay. Both axes are logarithmic.",
            label: "Roofline",
            key: legend(colours, true),
            data: points,
            select: 'g[aria-label="dot"] circle',
            describe: (point) => `${point.name}: ${number(point.rate)} GFLOP/s at ${number(point.intensity)} operations per byte, ${number(valueOf(point.bandwidth) ?? 0)} GB/s; ${percent(point.share)} of the replay` + (valueOf(point.floor?.fraction) === null ? "." : `; ${percent(valueOf(point.floor.fraction))} of what the machine can.`),
            draw: (width) => ({
                height: heightFor(width),
                ...MARGINS,
                x: { type: "log", domain: x, label: "operations per byte", grid: true, ticks: 5, tickFormat: decade },
                y: { type: "log", domain: y, label: "GFLOP/s", grid: true, ticks: 5, tickFormat: decade },
                r: { domain: [0, 1], range: [3, 22] },
                color: { domain: [...colours.keys()], range: [...colours.values()] },
                marks: [
                    Plot.link(slants, { x1: "x1", y1: "y1", x2: "x2", y2: "y2", stroke: "currentColor", strokeOpacity: 0.75 }),
                    Plot.link(flats, { x1: "from", x2: () => x[1], y1: "rate", y2: "rate", stroke: "currentColor", strokeOpacity: 0.75 }),
                    Plot.text(slants, { x: (line) => line.x1 * 1.15, y: (line) => line.y1 * 1.15, text: (line) => `${line.name} ${number(line.rate)} GB/s`, rotate: slope(width), textAnchor: "start", dy: -7, fill: "currentColor", stroke: "var(--paper)", strokeWidth: 4, fontSize: 11 }),
                    Plot.text(labels, { x: () => x[1], y: "rate", text: "name", textAnchor: "end", dx: -2, dy: -7, fill: "currentColor", stroke: "var(--paper)", strokeWidth: 4, fontSize: 11 }),
                    Plot.dot(points, { x: "intensity", y: "rate", r: "share", fill: "group", fillOpacity: 0.85, stroke: "var(--paper)", strokeWidth: 1.2 }),
                ],
            }),
            below: [
                behind(points, [
                    { head: "Operator", of: (point) => point.name },
                    { head: "Operations per byte", form: number, of: (point) => point.intensity },
                    { head: "Arithmetic", unit: "GFLOP/s", of: (point) => point.rate },
                    { head: "Bandwidth", unit: "GB/s", of: (point) => point.bandwidth },
                    { head: "Of what the machine can", unit: "share", of: (point) => point.floor?.fraction ?? point.row.row.floor },
                    { head: "Limit", of: (point) => known(point.floor?.limit) ?? "" },
                ]),
                roofTables(found.row),
            ],
        }),
        without > 0 && h("p", { class: "small" }, `${plural(without, "operator")} without arithmetic ${without === 1 ? "has" : "have"} no place here.`),
    ];
}

function roofTables(row) {
    const levels = { memory: "memory", l3: "L3 cache", l2: "L2 cache" };
    return aside(`What this machine can do with ${plural(row.threads, "thread")}`,
        table(row.bandwidth, [
            { head: "Bytes from", of: (one) => levels[one.level] ?? one.level },
            { head: "Traffic", of: (one) => one.traffic },
            { head: "Streams per thread", form: count, of: (one) => one.streams },
            { head: "Footprint", unit: "B", of: (one) => known(one.footprint_bytes) ?? one.footprint_bytes },
            { head: "Median", unit: "GB/s", of: (one) => known(one.rate)?.median ?? one.rate },
            { head: "Spread", unit: "GB/s", of: (one) => known(one.rate)?.spread ?? one.rate },
        ]),
        table(row.peaks, [
            { head: "Instruction", of: (one) => one.path },
            { head: "Operands from", of: (one) => one.operands },
            { head: "Median", unit: "GFLOP/s", of: (one) => known(one.rate)?.median ?? one.rate },
            { head: "Spread", unit: "GFLOP/s", of: (one) => known(one.rate)?.spread ?? one.rate },
        ]),
        terms([
            ["Meeting at a barrier", reading(known(row.barrier)?.median ?? row.barrier)],
            ["Starting a step", reading(known(row.dispatch)?.median ?? row.dispatch)],
        ]));
}
