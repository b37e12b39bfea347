// What to change next: the ranking of `find`, by what the request could gain at most. Not here: the views it rests on.

/** Candidates in full; the others are in the table. */
const SHOWN = 6;

function verdictSection() {
    return panelsOf("find", rankingPanel);
}

function rankingPanel(entry) {
    const record = entry.record;
    const ranking = known(record.ranking);
    const leftOut = record.steps.filter((step) => step.outcome.left_out !== undefined);
    const failed = record.steps.filter((step) => step.outcome !== "done" && !leftOut.includes(step));
    const head = [
        h("p", { class: "eyebrow" }, `${record.protocol.checkpoint}, ${workloadWords(record.workload)}`),
        voidNotice(entry),
        failed.length > 0 && notice("warn", failed.map((step) => `${step.name}: ${stepWords(step.outcome)}`)),
    ];
    if (!ranking) return [head, notice("absent", `No ranking: ${record.ranking.unavailable}. To get it: ${record.ranking.how_to_get}.`), source(entry)];
    const most = Math.max(...ranking.candidates.map((candidate) => valueOf(candidate.recoverable) ?? 0), 0);
    return [
        head,
        h("p", { class: "verdict" }, h("b", {}, prose(ranking.verdict))),
        leftOut.length > 0 && h("p", { class: "small" }, "Left out: ", leftOut.map((step) => `${step.name} (${step.outcome.left_out})`).join("; "), "."),
        ranking.doubts.length > 0 && [h("p", { class: "small" }, "Why it is not more certain:"), h("ul", { class: "small" }, ranking.doubts.map((doubt) => h("li", {}, prose(doubt))))],
        budgetChart(ranking),
        h("h3", {}, "What could be gained, most first"),
        h("p", { class: "lead" }, "Seconds that one request could lose at most, if a part ran at this machine's measured ceilings. Parts that cannot be told apart share a rank. A gain is possible, not promised: only the request clock shows what arrives."),
        h("ol", { class: "candidates" }, ranking.candidates.slice(0, SHOWN).map((candidate) => candidateItem(candidate, most))),
        ranking.candidates.length > SHOWN && details(`All ${ranking.candidates.length} candidates`, candidateTable(ranking.candidates)),
        ranking.candidates.length <= SHOWN && details("The numbers as a table", candidateTable(ranking.candidates)),
        ranking.rungs.length > 0 && rungTable(ranking.rungs),
        ranking.next.length > 0 && [h("h3", {}, "What to run next"), h("ol", {}, ranking.next.map((step) => h("li", {}, experiment(step))))],
        source(entry),
    ];
}

function stepWords(outcome) {
    if (typeof outcome === "string") return words(outcome);
    const [kind, why] = Object.entries(outcome)[0];
    return `${words(kind)}: ${why}`;
}

/** The request as floor, what could be gained, and what no row explains. */
function budgetChart(ranking) {
    const parts = [
        ["the least it takes at the ceilings", ranking.floor, "var(--c1)"],
        ["what could be gained", ranking.recoverable, "var(--c4)"],
        ["in no row", ranking.unexplained, "var(--c7)"],
    ].map(([part, of, colour]) => ({ part, seconds: valueOf(of), colour })).filter((part) => part.seconds !== null && part.seconds > 0);
    const whole = valueOf(ranking.request);
    if (whole === null || parts.length === 0) return null;
    const [unit, factor] = scaleFor([whole], "s");
    const colours = new Map(parts.map((part) => [part.part, part.colour]));
    return chart({
        title: `One request: ${number(whole * factor)} ${unit}`,
        note: (valueOf(ranking.unexplained) ?? 0) < 0 ? `The parts, measured one by one, come to ${quantity(-valueOf(ranking.unexplained), "s")} more than the request.` : null,
        label: "The request's time",
        key: legend(colours),
        data: parts,
        select: 'g[aria-label="bar"] rect',
        describe: (part) => `${part.part}: ${number(part.seconds * factor)} ${unit}, ${percent(part.seconds / whole)} of the request.`,
        draw: () => ({
            height: 76,
            marginLeft: 14,
            marginRight: 16,
            x: { label: unit },
            y: { axis: null },
            color: { domain: [...colours.keys()], range: [...colours.values()] },
            marks: [Plot.barX(parts, { x: (part) => part.seconds * factor, fill: "part", insetLeft: 0.5, insetRight: 0.5, order: [...colours.keys()] })],
        }),
    });
}

function candidateItem(candidate, most) {
    const gain = valueOf(candidate.recoverable);
    const interval = known(candidate.interval);
    const bar = h("div", { class: "bar", "aria-hidden": "true" }, h("i", { style: `width: ${most > 0 && gain !== null ? Math.max(0.5, (100 * Math.max(gain, 0)) / most) : 0}%` }));
    const tries = known(candidate.tries);
    return h("li", {},
        h("div", { class: "rank", "aria-label": `Rank ${candidate.rank}` }, candidate.rank),
        h("div", { class: "body" },
            h("p", {}, h("span", { class: "name" }, candidate.name), " ", h("span", { class: "chip" }, words(candidate.kind)), " ", h("span", { class: "chip" }, candidate.phase), !candidate.in_request && [" ", h("span", { class: "chip" }, "beside the request")], bar),
            h("p", {}, prose(candidate.mechanism)),
            h("p", { class: "small" }, "The cheapest test that could refute it: ", experiment(candidate.falsify)),
            tries ? tries.map((one) => h("p", { class: "small" }, "To try: ", experiment(one))) : h("p", { class: "small" }, "Nothing to try exists yet: ", candidate.tries.unavailable, ". To get it: ", prose(candidate.tries.how_to_get)),
            h("p", { class: "small" }, "Evidence: ", evidenceLinks(candidate.evidence) ?? "none named")),
        h("div", { class: "gain" },
            h("b", {}, gain === null ? missingWord(candidate.recoverable) : quantity(gain, "s")),
            h("span", { class: "small" },
                valueOf(candidate.share) !== null && `${percent(valueOf(candidate.share))} of the request`,
                interval && [h("br"), `${quantity(interval.low, "s")} to ${quantity(interval.high, "s")}`],
                valueOf(candidate.remaining) !== null && [h("br"), `${quantity(valueOf(candidate.remaining), "s")} would remain`])));
}

function experiment(one) {
    return [code(one.command.map(shellWord).join(" ")), one.says && [" – ", prose(one.says)]];
}

/** A word as a shell takes it. */
function shellWord(part) {
    return /^[\w@%+=:,./-]+$/.test(part) ? part : `'${part.replace(/'/g, "'\\''")}'`;
}

function candidateTable(candidates) {
    return table(candidates, [
        { head: "Rank", form: count, of: (one) => one.rank },
        { head: "What", of: (one) => `${one.phase} ${one.name}` },
        { head: "Takes", unit: "s", of: (one) => one.measured },
        { head: "Waits in it", unit: "s", of: (one) => one.waits },
        { head: "Least", unit: "s", of: (one) => one.floor },
        { head: "Could gain", unit: "s", of: (one) => one.recoverable },
        { head: "Of the request", unit: "share", of: (one) => one.share },
        { head: "Remaining", unit: "s", of: (one) => one.remaining },
        { head: "Limit", of: (one) => known(one.limit) ?? one.limit },
    ]);
}

function rungTable(rungs) {
    return [
        h("h3", {}, "Rungs that exist already"),
        table(rungs, [
            { head: "Rung", of: (rung) => rung.checkpoint },
            {
                head: "What it changes, when that pays, how to try it",
                of: (rung) => [prose(rung.change), h("p", { class: "small" }, prose(rung.hypothesis)), h("p", { class: "small" }, experiment(rung.try_command))],
                wide: true,
            },
            { head: "Those parts take", unit: "s", of: (rung) => rung.addressed },
            { head: "Could gain", unit: "s", of: (rung) => rung.at_most },
            { head: "By fewer bytes", unit: "s", of: (rung) => rung.by_bytes },
        ]),
    ];
}
