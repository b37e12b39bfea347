// Decisions: the sentences and rules from before the measurement, the verdict after it, the numbers. Not here: judging.

function decisionSection() {
    return [ofKind("ledger").map(ledgerPanel), ofKind("decision").map(decisionPanel)];
}

const ANSWERS = { holds: "good", fails: "bad", undecided: "warn", missing: "warn" };

/** Rules with their answers and every number that they used. */
function ruleTable(answers) {
    return table(answers, [
        { head: "Rule", of: (one) => h("code", {}, one.rule) },
        { head: "Answer", of: (one) => h("span", { class: `word ${ANSWERS[one.answer] ?? ""}` }, one.answer) },
        { head: "Because", of: (one) => prose(one.sentence), wide: true },
        { head: "Numbers", of: (one) => one.used.map((number, index) => [index > 0 && "; ", `${number.name}: `, reading(number.value)]) },
    ]);
}

/** The decisions of a ledger, the newest first. */
function ledgerPanel(entry) {
    const { entries } = entry.record;
    const closings = new Map(entries.filter((one) => one.body.kind === "close").map((one) => [one.body.opened, one]));
    const notes = groupBy(entries.filter((one) => one.body.kind === "note"), (one) => one.body.about);
    const notesOf = (id) => (notes.find(([about]) => about === id)?.[1] ?? []).map((one) => h("p", { class: "small" }, `Note of ${moment(one.created)}: `, prose(one.body.text)));
    const shown = entries.filter((one) => one.body.kind === "open" || one.body.kind === "import").reverse();
    return [
        h("h3", {}, plural(shown.length, "decision"), " in the ledger"),
        h("p", { class: "small" }, `${plural(entries.length, "entry", "entries")}, each chained to the one before it by its hash; the chain was checked when this report was made. The last hash is `, h("code", {}, shortId(entries.at(-1)?.hash ?? "none")), "."),
        shown.map((one) => [one.body.kind === "open" ? openedDecision(one, closings.get(one.id)) : importedDecision(one), notesOf(one.id), notesOf(closings.get(one.id)?.id)]),
        source(entry),
    ];
}

function openedDecision(opened, closed) {
    const { body } = opened;
    const rules = (name, list) => [name, list.length > 0 ? list.map((rule, index) => [index > 0 && ", ", h("code", {}, rule)]) : "none"];
    return h("article", { class: "decision" },
        h("h4", {}, closed ? word(closed.body.verdict) : word("open"), ": ", prose(body.change)),
        closed && h("p", {}, prose(closed.body.sentence)),
        closed?.body.reason && h("p", {}, "Reason added by a person: ", prose(closed.body.reason)),
        terms([
            ["What dominated", prose(body.dominates)],
            ["From, to", `${body.baseline} to ${body.candidate}`],
            ["Expected", body.expect ? prose(body.expect) : null],
            ["Target", body.target ?? null],
            rules("Keep if all hold", body.accept),
            rules("Reject if any holds", body.reject),
            ["Opened", `${moment(opened.created)} (${opened.id})`],
            ["Closed", closed ? `${moment(closed.created)} (${closed.id})` : "not yet"],
            ["Evidence", evidenceLinks([...body.evidence, ...(closed?.body.evidence ?? [])]) ?? "none named"],
        ]),
        closed && closed.body.shapes.length > 0 && details("The verdict at each shape", closed.body.shapes.map((shape) => [
            h("h4", {}, shape.shape, ": ", word(shape.verdict)),
            h("p", {}, outcomeWords(shape.outcome, shape.outcome_sentence)),
            ruleTable([...shape.accept, ...shape.reject]),
            terms([
                ["Arrived in the request", valueOf(shape.arrived) === null ? missingWord(shape.arrived) : percent(valueOf(shape.arrived), 0)],
                ["Peak allocation, after over before", reading(shape.memory)],
            ]),
        ])));
}

function importedDecision(entry) {
    const { body } = entry;
    return h("article", { class: "decision" },
        h("h4", {}, word(body.kept), ": ", prose(body.change)),
        terms([
            ["What dominated before", prose(body.dominated_before)],
            ["Evidence", h("ul", {}, body.evidence.map((line) => h("li", {}, prose(line))))],
            ["Written elsewhere, imported", moment(entry.created)],
            ["Source", body.source ? evidenceLinks([body.source]) : null],
        ]));
}

/** A decision about two replays (`decision/1`). */
function decisionPanel(entry) {
    const record = entry.record;
    return [
        h("h3", {}, word(record.decision), `: ${record.baseline_checkpoint} to ${record.candidate_checkpoint}`),
        voidNotice(entry),
        terms([
            ["What dominated", record.dominant_category],
            ["Hypothesis", prose(record.hypothesis)],
            ["Observed effect", prose(record.observed_effect)],
            ["Next experiment", prose(record.next_experiment)],
            ["Evidence", `${words(record.evidence_kind)}: ${record.evidence_limits}`],
        ]),
        changes(record.evidence.comparison.groups),
        workloadLine(record.workload, record.workload_id),
        source(entry),
    ];
}
