// Numbers, units and what is missing, as people read them. Not here: where the numbers come from.

/** Whether a value is `{unavailable, how_to_get}`. */
function isMissing(value) {
    return value !== null && typeof value === "object" && typeof value.unavailable === "string";
}

/** The number of a reading, or null. */
function valueOf(reading) {
    return reading && typeof reading === "object" && typeof reading.value === "number" ? reading.value : null;
}

/** What is known, or null. */
function known(value) {
    return value === null || value === undefined || isMissing(value) ? null : value;
}

/** A number with about three significant digits; thousands are grouped. */
function number(value, digits = 3) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e15 || size < 1e-6) return value.toExponential(digits - 1);
    if (size >= 10 ** (digits - 1)) return Math.round(value).toLocaleString("en-US");
    const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
    return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

function percent(share, digits = 1) {
    return `${(100 * share).toFixed(digits)} %`;
}

/** A count: whole, grouped. */
function count(value) {
    return value.toLocaleString("en-US");
}

const SCALES = {
    s: [["ns", 1e9], ["µs", 1e6], ["ms", 1e3], ["s", 1]],
    B: [["B", 1], ["KiB", 2 ** -10], ["MiB", 2 ** -20], ["GiB", 2 ** -30]],
};

/** The unit in which the largest of these values is at least 1, as [name, factor]: one for a whole column or axis. */
function scaleFor(values, unit) {
    const plain = { us: ["µs", 1], share: ["%", 100], x: ["×", 1] }[unit] ?? [unit, 1];
    const choices = SCALES[unit];
    if (!choices) return plain;
    const largest = Math.max(0, ...values.filter((value) => Number.isFinite(value)).map(Math.abs));
    return [...choices].reverse().find(([, factor]) => largest * factor >= 1) ?? choices[0];
}

/** A value with its unit, e.g. `12.3 ms`. */
function quantity(value, unit) {
    const [name, factor] = scaleFor([value], unit);
    if (unit === "share") return percent(value);
    return `${number(value * factor)} ${name}`;
}

/** A duration in nanoseconds. */
function duration(ns) {
    return quantity(ns / 1e9, "s");
}

/** A reading with its unit, or the word that it is missing with the reason as its title. */
function reading(of) {
    const value = valueOf(of);
    return value === null ? missingWord(of) : quantity(value, of.unit);
}

/** The word for what is not there; tables add the reason below. */
function missingWord(of) {
    const why = isMissing(of) ? `${of.unavailable}. To get it: ${of.how_to_get}` : "not in this record";
    return h("span", { class: "missing", title: why }, "missing");
}

/** Known text, or the word that it is missing. */
function text(of) {
    return known(of) === null ? missingWord(of) : String(of);
}

function shortId(id) {
    return typeof id === "string" ? id.slice(0, 12) : "";
}

/** `snake_case` or `kebab-case` as words. */
function words(name) {
    return String(name).replace(/[_-]/g, " ");
}

function plural(n, one, many = `${one}s`) {
    return `${count(n)} ${n === 1 ? one : many}`;
}

/** `2026-11-29T23:27:44Z` as `2026-11-29 23:27 UTC`. */
function moment(time) {
    const found = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)/.exec(time ?? "");
    return found ? `${found[1]} ${found[2]} UTC` : String(time ?? "");
}

const TONES = {
    good: ["better", "keep", "kept", "confirmed", "passed", "on the critical path"],
    bad: ["worse", "reject", "rejected", "refuted", "failed", "void"],
    warn: ["inconclusive", "conditional", "no_difference", "partly hidden", "open"],
};

/** A verdict's colour class. */
function tone(verdict) {
    return Object.keys(TONES).find((name) => TONES[name].includes(verdict)) ?? "";
}

function word(verdict, shown = words(verdict)) {
    return h("span", { class: `word ${tone(verdict)}` }, shown);
}
