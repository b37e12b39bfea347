// Tables: units in the head, numbers aligned, the reasons of missing values below. Not here: what stands in them.

/** Rows that paper has room for; more are for the screen. */
const PAPER_ROWS = 10;

/** Which of `length` rows stand on the screen alone, and the sentence for paper that says so; a single row more is not worth it. */
function forPaper(length) {
    const cut = length > PAPER_ROWS + 2;
    return {
        beyond: (index) => cut && index >= PAPER_ROWS,
        note: cut && h("p", { class: "paper-only" }, `The first ${PAPER_ROWS} of ${count(length)} rows: this file on a screen has all of them.`),
    };
}

/**
 * `columns` are {head, of, unit?, form?, wide?}: with a `unit`, `of(row)` gives a reading or a number and the column is shown in
 * one scale of it; with `form`, a number; otherwise text or nodes. `total(row)` marks a sum; a table that
 * is `whole` is so on paper too.
 */
function table(rows, columns, { caption = null, total = () => false, whole = false } = {}) {
    const reasons = new Map();
    const plainNumber = (cell) => (typeof cell === "number" ? cell : valueOf(cell));
    const shown = columns.map((column) => {
        const values = column.unit ? rows.map((row) => plainNumber(column.of(row))).filter((value) => value !== null) : [];
        const scale = values.length > 0 ? scaleFor(values, column.unit) : null;
        return { ...column, scale, numeric: Boolean(column.unit || column.form) };
    });
    const cell = (column, row) => {
        const found = column.of(row);
        if (!column.numeric) return isMissing(found) ? absent(found, reasons) : found ?? "";
        const value = plainNumber(found);
        if (value === null || !Number.isFinite(value)) return found === null ? "" : absent(found, reasons);
        return column.form ? column.form(value) : number(value * column.scale[1]);
    };
    const head = shown.map((column) =>
        h("th", { scope: "col", class: column.numeric && "number" }, column.head,
            column.scale && h("span", { class: "unit" }, column.scale[0])));
    const paper = forPaper(whole ? 0 : rows.length);
    const body = rows.map((row, at) =>
        h("tr", { class: total(row) ? "total" : paper.beyond(at) && "screen-only" }, shown.map((column, index) =>
            h(index === 0 ? "th" : "td",
                { scope: index === 0 && "row", class: [column.numeric && "number", column.wide && "wide"].filter(Boolean).join(" ") || null },
                cell(column, row)))));
    const notes = [...reasons.entries()].map(([reason, mark]) => h("li", { value: mark }, prose(reason)));
    return [
        h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": caption ?? "table" },
            h("table", {}, caption && h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body))),
        paper.note,
        notes.length > 0 && h("ol", { class: "footnotes" }, notes),
    ];
}

/** The word "missing" with the number of its reason. */
function absent(of, reasons) {
    const reason = isMissing(of) ? `Missing: ${of.unavailable}. To get it: ${of.how_to_get}.` : "Missing: not in this record.";
    if (!reasons.has(reason)) reasons.set(reason, reasons.size + 1);
    return h("span", { class: "missing", title: reason }, "missing", h("sup", {}, reasons.get(reason)));
}

/** A table behind a chart. */
function behind(rows, columns, options) {
    return details("The numbers as a table", table(rows, columns, options));
}
