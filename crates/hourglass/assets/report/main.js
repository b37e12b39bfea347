// The report itself: its sections in order, the contents, the head. Not here: how a section is made.

const SECTIONS = [
    { id: "next", title: "What to change next", question: "What limits this request, and what could be gained?", how: "`hourglass find`", make: verdictSection },
    { id: "clock", title: "Request clock", question: "Did the request get faster?", how: "`hourglass bench --suite ladder --json-output FILE`", make: clockSection },
    { id: "climb", title: "The ladder, walked", question: "Which rung kept its promise on this machine?", how: "`hourglass find --climb`", make: climbSection },
    { id: "phases", title: "Prefill and decode", question: "Which phase is the larger one?", how: "`hourglass bench --json-output FILE`", make: phaseSection },
    { id: "operators", title: "Operators", question: "Which group of operators costs the most at a shape?", how: "`hourglass replay --case selected:decode:128 --json-output FILE`", make: operatorSection },
    { id: "roofline", title: "How near the machine's limit", question: "How far is each operator from what this machine can do?", how: "`hourglass ceilings --json-output FILE`, beside a replay", make: rooflineSection },
    { id: "shapes", title: "Two kernels at a request's shapes", question: "Would another kernel of the same operator take less, and where?", how: "`hourglass replay --shapes RECORD --compare KERNEL,KERNEL --json-output FILE`", make: shapesSection },
    { id: "timeline", title: "Timeline", question: "Is everybody busy, and why not?", how: "`hourglass timeline --out TRACE --json-output FILE`", make: timelineSection },
    { id: "kernels", title: "Kernels and source lines", question: "Which kernel dominates, what limits it, which line is expensive?", how: "`hourglass capture`, then `hourglass reduce` and `hourglass lines`", make: kernelSection },
    { id: "wiring", title: "Wiring", question: "Was the kernel that was meant really called?", how: "`hourglass wiring --json-output FILE`", make: wiringSection },
    { id: "memory", title: "Memory", question: "What did the request hold at its peak?", how: "`hourglass bench --json-output FILE`", make: memorySection },
    { id: "comparisons", title: "Comparisons", question: "Did the change help, and how much of it arrived?", how: "`hourglass compare BEFORE AFTER --json-output FILE`", make: comparisonSection },
    { id: "decisions", title: "Decisions", question: "What was decided, by which rule, on which evidence?", how: "`hourglass decide open`, later `hourglass decide close`; give the ledger to the report", make: decisionSection },
    { id: "conditions", title: "Conditions and bias", question: "Under what was it measured, and what could mislead?", how: "any record of a measurement", make: conditionsSection },
];

/** Whether a section has anything to show. */
function filled(content) {
    return [content].flat(Infinity).some((one) => one instanceof Node);
}

function header() {
    const records = DATA.records.map((entry) => entry.record).filter(Boolean);
    const models = [...new Set(records.flatMap((record) => [record.workload, ...(record.cases ?? []).map((one) => one.replay.workload)]).map((workload) => workload?.model).filter(Boolean))];
    const host = records.map(hostOf).find(Boolean);
    const times = records.map((record) => record.created).filter(Boolean).sort();
    const voids = DATA.records.filter((entry) => entry.record?.void);
    return [
        h("p", { class: "eyebrow" }, "Hourglass report"),
        h("h1", {}, models.length > 0 ? models.join(", ") : "Records"),
        voids.length > 0 && notice("bad", `Void, because a check failed: ${voids.map((entry) => entry.name).join(", ")}. Their numbers are shown and may not be relied on.`),
        terms([
            ["Machine", host ? [text(host.cpu_model), `, ${plural(host.processors, "processor")}`] : "not in these records"],
            ["Measured", times.length > 0 ? (moment(times[0]) === moment(times.at(-1)) ? moment(times[0]) : `${moment(times[0])} to ${moment(times.at(-1)).slice(0, 10) === moment(times[0]).slice(0, 10) ? moment(times.at(-1)).slice(11) : moment(times.at(-1))}`) : "no time in these records"],
            ["Records", h("a", { href: "#records" }, plural(DATA.records.length, "file"))],
            ["Report made", [moment(DATA.created), ` by hourglass ${DATA.version}`]],
        ], "facts"),
    ];
}

function build() {
    const main = document.getElementById("main");
    const contents = [];
    const missing = [];
    const add = (section, content, empty = false) => {
        contents.push(h("li", {}, h("a", { href: `#${section.id}`, class: empty && "empty" }, section.title)));
        main.append(h("section", { id: section.id, "aria-labelledby": `${section.id}-title` },
            h("h2", { id: `${section.id}-title` }, section.title),
            h("p", { class: "lead" }, section.question), content));
    };
    append(document.getElementById("head"), header());
    for (const section of SECTIONS) {
        const content = [section.make()].flat(Infinity).filter((one) => one !== null && one !== false && one !== undefined);
        if (filled(content)) {
            add(section, content);
        } else {
            missing.push(section);
            add(section, notice("absent", [["Missing: no record here shows this. To get it: ", prose(section.how), ", and give the file to ", h("code", {}, "hourglass report"), "."]]), true);
        }
    }
    add({ id: "missing", title: "What is missing", question: "Nothing that was not measured is shown as zero. Here is all of it, why, and how to get it." }, missingSection(missing));
    add({ id: "records", title: "Records", question: "What this report was made from." }, recordsSection());
    document.getElementById("contents").append(h("ol", {}, contents));
    document.title = `Hourglass report: ${document.querySelector("h1").textContent}`;
    followContents();
    // On paper, what is folded away is shown.
    const folded = () => [...document.querySelectorAll("details:not([open], .aside)")];
    let opened = [];
    addEventListener("beforeprint", () => {
        opened = folded();
        for (const one of opened) one.open = true;
    });
    addEventListener("afterprint", () => {
        for (const one of opened) one.open = false;
    });
    if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

/** Marks in the contents which section is being read. */
function followContents() {
    const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
    const seen = new Set();
    const watcher = new IntersectionObserver((entries) => {
        for (const { target, isIntersecting } of entries) {
            if (isIntersecting) seen.add(target.id);
            else seen.delete(target.id);
        }
        const first = [...links.keys()].find((id) => seen.has(id));
        for (const [id, link] of links) {
            if (id === first) link.setAttribute("aria-current", "true");
            else link.removeAttribute("aria-current");
        }
    }, { rootMargin: "-10% 0px -70% 0px" });
    for (const section of document.querySelectorAll("main > section")) watcher.observe(section);
}

build();
