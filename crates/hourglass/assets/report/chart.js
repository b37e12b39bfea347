// Charts: Observable Plot's SVG with keyboard and pointer reading, colours and legends. Not here: what is drawn.

const COLOURS = ["var(--c1)", "var(--c4)", "var(--c3)", "var(--c2)", "var(--c5)", "var(--c6)", "var(--c8)", "var(--c7)"];

/** What has the same colour in every chart. */
const FIXED = {
    projections: "var(--c1)",
    attention: "var(--c4)",
    "normalization, position, and activation": "var(--c3)",
    "cache update": "var(--c2)",
    embedding: "var(--c5)",
    head: "var(--c6)",
    sampling: "var(--c8)",
    busy: "var(--c1)",
    prefill: "var(--c9)",
    decode: "var(--c1)",
    "other parts": "var(--c7)",
    barrier: "var(--c2)",
    dispatch: "var(--c3)",
    unexplained: "var(--c7)",
    descheduled: "var(--c4)",
    "page fault": "var(--c5)",
    "set-up": "var(--c6)",
};

/** A colour per name: the fixed ones, and for others those that are left, in order. */
function coloursFor(names) {
    const unique = [...new Set(names)];
    const taken = new Set(unique.map((name) => FIXED[name]).filter(Boolean));
    const free = COLOURS.filter((colour) => !taken.has(colour));
    let next = 0;
    return new Map(unique.map((name) => {
        if (FIXED[name]) return [name, FIXED[name]];
        next += 1;
        return [name, free.length > 0 ? free[(next - 1) % free.length] : "var(--c7)"];
    }));
}

function legend(colours, round = false) {
    return h("ul", { class: "legend" }, [...colours].map(([name, colour]) =>
        h("li", {}, h("i", { class: round && "round", style: `background: ${colour}` }), name)));
}

/**
 * A chart with a title and a sentence that says what is to be seen.
 *
 * `draw(width)` gives Plot's options, `data` is what its first mark made by `select` (a CSS selector of one element per datum, in
 * order) was drawn from, and `describe(datum)` what is read out of it. Pointer and arrow keys read values; the table below
 * holds all of them.
 */
function chart({ title, note, label, draw, data, select, describe, key, below }) {
    const readout = h("p", { class: "readout", "aria-live": "polite" });
    const box = h("div", { class: "chart", tabindex: 0, role: "group", "aria-roledescription": "chart", "aria-label": `${label ?? title}. Arrow keys read the values.` });
    const idle = () => {
        readout.textContent = box.matches(":focus-visible") ? "Arrow keys read the values; Escape leaves them." : "";
    };
    let marks = [];
    let at = -1;
    const show = (index) => {
        marks[at]?.classList.remove("on");
        at = index;
        if (index < 0) return idle();
        marks[index].classList.add("on");
        readout.textContent = describe(data[marks[index].dataset.index]);
    };
    const render = (width) => {
        const options = draw(width);
        const svg = Plot.plot({
            width,
            marginBottom: 38,
            className: "plot",
            style: { background: "none", color: "inherit", fontFamily: "inherit", fontSize: "12px", overflow: "visible" },
            ...options,
        });
        svg.setAttribute("aria-hidden", "true");
        box.replaceChildren(svg);
        at = -1;
        // Plot binds to each element the index of its datum, and leaves out what has no place.
        marks = [...svg.querySelectorAll(select)].filter((mark) => Number.isInteger(mark.__data__));
        marks.forEach((mark, index) => {
            mark.dataset.index = mark.__data__;
            mark.classList.add("mark");
            mark.addEventListener("pointerenter", () => show(index));
            mark.addEventListener("pointerleave", () => show(-1));
        });
    };
    box.addEventListener("keydown", (event) => {
        const last = marks.length - 1;
        const to = {
            ArrowRight: Math.min(at + 1, last),
            ArrowDown: Math.min(at + 1, last),
            ArrowLeft: Math.max(at - 1, 0),
            ArrowUp: Math.max(at - 1, 0),
            Home: 0,
            End: last,
            Escape: -1,
        }[event.key];
        if (to === undefined || last < 0) return;
        event.preventDefault();
        show(to);
    });
    box.addEventListener("focus", idle);
    box.addEventListener("blur", () => show(-1));
    let drawn = 0;
    new ResizeObserver(([entry]) => {
        const width = Math.round(Math.min(Math.max(entry.contentRect.width, 280), 980));
        // A hidden tab has no width; paper takes what the screen had.
        if (entry.contentRect.width > 0 && Math.abs(width - drawn) > 4) {
            drawn = width;
            render(width);
        }
    }).observe(box);
    render(720);
    return h("figure", {}, h("figcaption", {}, h("b", {}, title), note && prose(note)), key, box, readout, below);
}

/** Room for labels of this length left of a chart; long ones are cut in the chart and whole in its table. */
function marginFor(labels, width) {
    const longest = Math.max(0, ...labels.map((label) => String(label).length));
    return Math.round(Math.min(24 + longest * 6.7, width * 0.4));
}

function cut(label, margin) {
    const room = Math.max(4, Math.floor((margin - 16) / 6.7));
    const whole = String(label);
    return whole.length <= room ? whole : `${whole.slice(0, room - 1)}…`;
}
