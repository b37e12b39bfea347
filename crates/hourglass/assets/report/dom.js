// Making elements. Text always goes in as text: nothing in a record can become HTML. Not here: what is shown.

/** An element with attributes and children: nodes, texts, numbers, lists of them; null and false are left out. */
function h(name, attributes, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes ?? {})) {
        if (value === null || value === undefined || value === false) continue;
        if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
        else element.setAttribute(key, value === true ? "" : String(value));
    }
    append(element, children);
    return element;
}

function append(element, children) {
    for (const child of [children].flat(Infinity)) {
        if (child === null || child === undefined || child === false) continue;
        element.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
    return element;
}

let serial = 0;

/** An id that no other element has. */
function freshId(prefix) {
    serial += 1;
    return `${prefix}-${serial}`;
}

/** A command, name or path; a line never ends inside a flag. */
function code(text) {
    return h("code", {}, text.split(/(?<=^| )(--[\w-]{1,30})(?= |$)/).map((part, index) => (index % 2 === 1 ? h("span", { class: "flag" }, part) : part)));
}

/** Text in which `backquoted` words are code and **starred** ones strong. */
function prose(text) {
    const parts = String(text).split(/(`[^`]+`|\*\*[^*]+\*\*)/);
    return parts.map((part) => {
        if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return code(part.slice(1, -1));
        if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return h("strong", {}, part.slice(2, -2));
        return part;
    });
}

/** Paragraphs and bullets of a Markdown text; anything else in it stays as it is written. Headings are left out. */
function markdown(text) {
    const blocks = [];
    for (const block of text.split(/\n\s*\n/)) {
        if (/^#/.test(block)) continue;
        if (/^- /m.test(block)) {
            const items = block.split(/^- /m).map((item) => item.replace(/\s+/g, " ").trim()).filter(Boolean);
            blocks.push(h("ul", {}, items.map((item) => h("li", {}, prose(item)))));
        } else if (block.trim()) {
            blocks.push(h("p", {}, prose(block.replace(/\s+/g, " ").trim())));
        }
    }
    return blocks;
}

function notice(kind, ...children) {
    return h("div", { class: `notice ${kind}` }, children.flat().map((child) => h("p", {}, child)));
}

function details(summary, ...children) {
    return h("details", {}, h("summary", {}, summary), children);
}

/** What only somebody at a screen unfolds: paper leaves it out. */
function aside(summary, ...children) {
    return h("details", { class: "aside" }, h("summary", {}, summary), children);
}

/** Names and what they are, as a list of terms; rows without a value are left out. */
function terms(rows, className = "terms") {
    const shown = rows.filter((row) => row && row[1] !== null && row[1] !== undefined);
    const pairs = shown.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
    if (className === "facts") return h("dl", { class: "facts" }, pairs.map((pair) => h("div", {}, pair)));
    return h("dl", { class: className }, pairs);
}

/**
 * Tabs: one panel at a time, arrow keys between them; all of them on paper. `panels` is [[name, content], ...]; one alone
 * needs no tabs.
 */
function tabs(label, panels) {
    if (panels.length === 0) return null;
    if (panels.length === 1) return panels[0][1];
    const buttons = [];
    const bodies = [];
    const select = (chosen, focus) => {
        buttons.forEach((button, index) => {
            button.setAttribute("aria-selected", index === chosen);
            button.tabIndex = index === chosen ? 0 : -1;
            bodies[index].hidden = index !== chosen;
        });
        if (focus) buttons[chosen].focus();
    };
    panels.forEach(([name, content], index) => {
        const [tab, panel] = [freshId("tab"), freshId("panel")];
        const move = (event) => {
            const last = panels.length - 1;
            const to = {
                ArrowRight: index === last ? 0 : index + 1,
                ArrowLeft: index === 0 ? last : index - 1,
                Home: 0,
                End: last,
            }[event.key];
            if (to === undefined) return;
            event.preventDefault();
            select(to, true);
        };
        buttons.push(
            h("button", { role: "tab", type: "button", id: tab, "aria-controls": panel, onclick: () => select(index), onkeydown: move }, name),
        );
        bodies.push(
            h("div", { role: "tabpanel", id: panel, "aria-labelledby": tab }, h("p", { class: "panel-name" }, name), content),
        );
    });
    select(0, false);
    return h("div", {}, h("div", { class: "tabs", role: "tablist", "aria-label": label }, buttons), bodies);
}
