// Under what it was measured, what our numbers could be biased by, and what is missing. Not here: the measurements.

/** Conditions of a record: its own, its cases', or its arms'. */
function conditionsOf(record) {
    const own = known(record.conditions);
    if (own) return [own];
    return [...(record.cases ?? []), ...(record.arms ?? [])].map((one) => known(one.conditions)).filter(Boolean);
}

function hostOf(record) {
    return known(record.host) ?? conditionsOf(record)[0]?.host ?? null;
}

function binaryOf(record) {
    return known(record.binary) ?? conditionsOf(record)[0]?.binary ?? null;
}

function conditionsSection() {
    const rows = DATA.records.filter((entry) => entry.record).map((entry) => ({
        entry,
        host: hostOf(entry.record),
        binary: binaryOf(entry.record),
        conditions: conditionsOf(entry.record)[0] ?? null,
    })).filter((row) => row.host || row.binary);
    if (rows.length === 0) return [];
    const machines = groupBy(rows.filter((row) => row.host), (row) => JSON.stringify(row.host));
    const builds = new Set(rows.map((row) => (row.binary ? String(known(row.binary.build_id) ?? row.binary.version) : null)).filter(Boolean));
    return [
        machines.length > 1 && notice("warn", `These records come from ${machines.length} different machines or states of one. Compare only what was measured in one run.`),
        builds.size > 1 && notice("warn", `${builds.size} different builds made these records.`),
        machines.map(([, of]) => {
            const host = of[0].host;
            return [
                terms([
                    ["Processor", [text(host.cpu_model), `, ${plural(host.processors, "processor")} to use`]],
                    ["Memory", known(host.memory_bytes) === null ? missingWord(host.memory_bytes) : quantity(host.memory_bytes, "B")],
                    ["System", [text(host.operating_system), ", kernel ", text(host.kernel_release)]],
                    ["Huge pages", text(host.huge_pages)],
                    ["Device, driver", [host.device, ", ", known(host.driver) === null ? "no driver" : host.driver]],
                    ["Records", of.map((row, index) => [index > 0 && ", ", h("a", { href: `#record-${row.entry.index}` }, row.entry.name)])],
                ]),
            ];
        }),
        aside("Builds, threads and instruction sets", table(rows, [
            { head: "Record", of: (row) => row.entry.name },
            { head: "Version", of: (row) => row.binary?.version ?? "" },
            { head: "Commit", of: (row) => (row.binary ? commitWords(row.binary) : "") },
            { head: "Build", of: (row) => (row.binary ? h("code", {}, known(row.binary.build_id) === null ? "not known" : shortId(row.binary.build_id)) : "") },
            { head: "Threads", of: (row) => row.conditions?.threads ?? "" },
            { head: "Pinned", of: (row) => (row.conditions ? (row.conditions.pinned ? "yes" : "no") : "") },
            { head: "Instruction sets", of: (row) => h("span", { class: "small" }, (row.conditions?.features ?? []).join(" ")), wide: true },
        ])),
        surroundings(),
        h("h3", {}, "What these numbers could be biased by"),
        markdown(DATA.bias),
    ];
}

function commitWords(binary) {
    if (known(binary.commit) === null) return missingWord(binary.commit);
    return [h("code", {}, shortId(binary.commit)), known(binary.dirty) === true && " with changes"];
}

/** What else ran on the machine while bench samples were taken. */
function surroundings() {
    const rows = ofKind("bench").flatMap((entry) => {
        const marked = entry.record.samples.filter((sample) => sample.marks.length > 0);
        const excluded = entry.record.samples.filter((sample) => sample.excluded);
        const of = (name) => entry.record.samples.map((sample) => valueOf(known(sample.surroundings)?.[name])).filter((value) => value !== null);
        const most = (name) => (of(name).length > 0 ? Math.max(...of(name)) : { unavailable: "no sample has it", how_to_get: "measure again with this build" });
        return [{ entry, samples: entry.record.samples.length, marked: marked.length, excluded: excluded.length, steal: most("steal"), others: most("others") }];
    });
    if (rows.length === 0) return null;
    return [
        h("h4", {}, "What else ran meanwhile"),
        table(rows, [
            { head: "Record", of: (row) => row.entry.name },
            { head: "Samples", form: count, of: (row) => row.samples },
            { head: "Marked: machine above a limit", form: count, of: (row) => row.marked },
            { head: "Left out by the rule", form: count, of: (row) => row.excluded },
            { head: "Most withheld by the hypervisor", unit: "share", of: (row) => row.steal },
            { head: "Most used by others", unit: "share", of: (row) => row.others },
        ]),
    ];
}

/** Every reading that is unavailable, by record and reason. */
function missingSection(absentSections) {
    const perRecord = DATA.records.filter((entry) => entry.record).map((entry) => {
        const found = missingIn(entry.record);
        const reasons = groupBy(found, (one) => `${one.unavailable}\u0000${one.how_to_get}`);
        return { entry, total: found.length, rows: reasons.map(([, same]) => ({ ...same[0], times: same.length, paths: [...new Set(same.map((one) => one.path))] })) };
    }).filter((one) => one.total > 0);
    return [
        absentSections.length > 0 && [
            h("h3", {}, "Views without a record"),
            table(absentSections, [
                { head: "View", of: (section) => section.title },
                { head: "What it would answer", of: (section) => section.question, wide: true },
                { head: "How to get it", of: (section) => prose(section.how), wide: true },
            ]),
        ],
        perRecord.map(({ entry, total, rows }) => aside(`${entry.name}: ${plural(total, "value")} missing, ${plural(rows.length, "reason")}`, table(rows, [
            { head: "Why", of: (row) => prose(row.unavailable), wide: true },
            { head: "How to get it", of: (row) => prose(row.how_to_get), wide: true },
            { head: "Times", form: count, of: (row) => row.times },
            { head: "Where", of: (row) => h("span", { class: "mono" }, row.paths.slice(0, 3).join(", ") + (row.paths.length > 3 ? `, and ${row.paths.length - 3} more` : "")) },
        ]))),
        absentSections.length === 0 && perRecord.length === 0 && h("p", {}, "Nothing: every view has a record, and every value in them was measured."),
    ];
}

/** The files behind the report: what each is, whether it is whole, and its checks. */
function recordsSection() {
    return [
        h("p", { class: "lead" }, "Each record is one file, named here by the first twelve digits of its SHA-256. Its checks were computed again from its numbers when this report was made."),
        DATA.records.map((entry) => {
            const checks = entry.record?.checks ?? [];
            const failed = checks.filter((check) => !check.passed);
            return h("div", { id: `record-${entry.index}` },
                h("h4", {}, entry.name, " ", h("span", { class: "chip" }, entry.schema), " ", entry.record?.void && h("span", { class: "chip void" }, "void")),
                terms([
                    ["SHA-256", h("code", {}, entry.sha256)],
                    ["Made", entry.record?.created ? moment(entry.record.created) : null],
                    ["Subject", subjectWords(entry.record)],
                    ["Workload", entry.record?.workload_id ? h("code", {}, shortId(entry.record.workload_id)) : null],
                    ["Checks", checks.length > 0 ? `${count(checks.length - failed.length)} of ${count(checks.length)} passed` : null],
                ]),
                checks.length > 0 && aside("The checks", table(checks, [
                    { head: "What must be equal", of: (check) => check.name, wide: true },
                    { head: "Expected", form: (value) => number(value, 6), of: (check) => check.expected },
                    { head: "Found", form: (value) => number(value, 6), of: (check) => check.found },
                    { head: "", of: (check) => word(check.passed ? "passed" : "failed") },
                ])));
        }),
        DATA.left_out.length > 0 && [h("h4", {}, "Files that are no records, and were left out"), h("ul", { class: "small" }, DATA.left_out.map((one) => h("li", {}, one.why)))],
        aside("Licences of the drawing library", h("pre", { class: "small" }, DATA.licences)),
    ];
}

function subjectWords(record) {
    const subject = known(record?.subject);
    return subject ? `${subject.solution}, ${subject.checkpoint}, ${subject.weights_form}` : null;
}
