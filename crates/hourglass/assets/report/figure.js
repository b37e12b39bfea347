// One section of the report, or one chart of it, in another page. `PLACE` is the element that it is drawn in, `STYLE` the report's
// style: both are what the page around these scripts gives them. Not here: the section.

function figure() {
    const section = SECTIONS.find((one) => one.id === PLACE.dataset.section);
    const content = [section?.make()].flat(Infinity).filter((one) => one instanceof Node);
    let shown = content;
    const { only } = PLACE.dataset;
    if (only) {
        const titles = content.flatMap((one) => [...one.querySelectorAll("figcaption b")]);
        const title = titles.find((one) => one.textContent.startsWith(only));
        if (!title) throw new Error(`no chart of '${PLACE.dataset.section}' begins with '${only}': there are ${titles.map((one) => one.textContent).join("; ")}`);
        shown = [title.closest("figure")];
    }
    if (shown.length === 0) throw new Error(`nothing in these records is drawn in '${PLACE.dataset.section}'`);
    // The page's style and the report's keep apart.
    const root = PLACE.attachShadow({ mode: "open" });
    root.append(h("style", {}, STYLE), h("div", { class: "figure" }, shown));
    // A report lists its records; another page does not.
    for (const link of root.querySelectorAll('a[href^="#record-"]')) link.replaceWith(...link.childNodes);
}

figure();
