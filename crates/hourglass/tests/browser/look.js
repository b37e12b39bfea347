// Opens one report in a real Chromium and prints as JSON what a test can judge: what went wrong, what is there, what the keyboard
// does, how it fits on screens and paper. Charts are pictured without their texts, whose shapes depend on installed fonts.
//
// usage: node look.js PLAYWRIGHT CHROMIUM REPORT.html FOLDER [EXPECTED-FOLDER]
// FOLDER gets the pictures; pictures in EXPECTED-FOLDER are compared with them. Not here: what is right.
"use strict";
const fs = require("fs");
const path = require("path");

const [playwright, executablePath, report, folder, expected] = process.argv.slice(2);
const { chromium } = require(playwright);

const WIDTHS = [340, 768, 1360];

async function main() {
    const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--force-device-scale-factor=1", "--disable-lcd-text"] });
    const problems = [];
    const found = { problems };
    const open = async (options) => {
        const context = await browser.newContext({ viewport: { width: 1000, height: 800 }, reducedMotion: "reduce", ...options });
        const page = await context.newPage();
        page.on("console", (message) => problems.push(`console ${message.type()}: ${message.text()}`));
        page.on("pageerror", (error) => problems.push(`error: ${error.stack}`));
        page.on("dialog", (dialog) => {
            problems.push(`dialog: ${dialog.message()}`);
            dialog.dismiss();
        });
        page.on("request", (request) => {
            if (request.url() !== url) problems.push(`request: ${request.url()}`);
        });
        await page.goto(url);
        await page.waitForFunction(() => document.getElementById("records") !== null, null, { timeout: 20000 }).catch(() => problems.push("the page was not built"));
        await settle(page);
        return page;
    };
    const url = `file://${path.resolve(report)}`;
    // A page at another place of this machine's network must stay unreachable, whatever the page tries.
    const page = await open({ colorScheme: "light" });
    found.content = await page.evaluate(contentOf);
    found.network = await page.evaluate(async () => fetch("http://127.0.0.1:9/").then(() => "reached", () => "refused"));
    problems.splice(0, problems.length, ...problems.filter((problem) => !/127\.0\.0\.1:9/.test(problem)));
    found.keyboard = await keyboard(page);
    found.overflow = {};
    for (const width of WIDTHS) {
        await page.setViewportSize({ width, height: 800 });
        await settle(page);
        found.overflow[width] = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    }
    await page.setViewportSize({ width: 1000, height: 800 });
    await page.emulateMedia({ media: "print" });
    await settle(page);
    found.print = await page.evaluate(() => ({
        navigation: getComputedStyle(document.querySelector("nav")).display,
        hiddenPanels: [...document.querySelectorAll('[role="tabpanel"]')].filter((panel) => getComputedStyle(panel).display === "none").length,
        background: getComputedStyle(document.body).backgroundColor,
        cut: document.querySelectorAll(".screen-only").length,
        shownOnPaper: [...document.querySelectorAll(".screen-only")].filter((one) => getComputedStyle(one).display !== "none").length,
        notes: [...document.querySelectorAll(".paper-only")].filter((one) => getComputedStyle(one).display === "block").length,
    }));
    found.pages = (await page.pdf({ format: "A4" })).toString("latin1").match(/\/Type\s*\/Page\b/g)?.length ?? 0;
    await page.emulateMedia({ media: "screen" });
    found.contrast = {};
    found.pictures = {};
    for (const colorScheme of ["light", "dark"]) {
        const themed = await open({ colorScheme });
        found.contrast[colorScheme] = await themed.evaluate(contrasts);
        await themed.addStyleTag({ content: ".chart svg text { visibility: hidden } * { caret-color: transparent }" }).catch(() => {});
        const charts = await themed.locator(".chart:visible").all();
        for (const [index, chart] of charts.entries()) {
            const name = `${colorScheme}-${String(index).padStart(2, "0")}.png`;
            const picture = await chart.screenshot({ path: path.join(folder, name), animations: "disabled" });
            const stored = expected && path.join(expected, name);
            found.pictures[name] = !expected ? null : fs.existsSync(stored) ? await difference(themed, picture, fs.readFileSync(stored)) : "no such stored picture";
        }
    }
    console.log(JSON.stringify(found));
    await browser.close();
}

/** Charts are drawn again when their width is known. */
async function settle(page) {
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30)))));
}

function contentOf() {
    const sections = [...document.querySelectorAll("main > section")].map((section) => ({
        id: section.id,
        missing: section.querySelector(":scope > .notice.absent") !== null,
        text: section.innerText,
    }));
    const charts = [...document.querySelectorAll(".chart")].map((chart) => ({
        section: chart.closest("section").id,
        label: chart.getAttribute("aria-label"),
        marks: chart.querySelectorAll(".mark").length,
        bad: [...chart.querySelectorAll("svg *")].filter((element) => [...element.attributes].some((attribute) => /NaN|Infinity|undefined/.test(attribute.value))).length,
    }));
    return {
        title: document.title,
        heading: document.querySelector("h1").innerText,
        sections,
        charts,
        void: [...document.querySelectorAll(".notice.bad")].map((one) => one.innerText),
        heat: [...document.querySelectorAll(".source-view .row")].map((row) => row.innerText),
        // Everything that could have come out of a record as HTML.
        injected: document.querySelectorAll("main img, main iframe, main script, main object, main a[href^='javascript'], main [onerror], header script").length,
        duplicateIds: [...document.querySelectorAll("[id]")].map((element) => element.id).filter((id, index, all) => all.indexOf(id) !== index),
        unnamed: [...document.querySelectorAll("a, button, summary, [tabindex='0']")].filter((element) => !element.textContent.trim() && !element.getAttribute("aria-label")).length,
        text: document.body.innerText,
    };
}

/** What keys do: the way in, tabs, charts, folded tables. */
async function keyboard(page) {
    const at = (selector) => page.evaluate((one) => document.activeElement?.matches(one) ?? false, selector);
    const result = {};
    await page.evaluate(() => document.activeElement?.blur());
    await page.keyboard.press("Tab");
    result.skipFirst = await at(".skip");
    await page.keyboard.press("Enter");
    result.skipLeadsToMain = await at("main");
    // Every stop from there shows where it is.
    let stops = 0;
    let withoutRing = 0;
    const kinds = new Set();
    for (; stops < 400; stops += 1) {
        await page.keyboard.press("Tab");
        const stop = await page.evaluate(() => {
            const element = document.activeElement;
            if (!element || element === document.body) return null;
            const style = getComputedStyle(element);
            return { ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2, kind: element.getAttribute("role") ?? element.localName };
        });
        if (!stop) break;
        if (!stop.ring) withoutRing += 1;
        kinds.add(stop.kind);
    }
    Object.assign(result, { stops, withoutRing, kinds: [...kinds].sort() });
    const tab = page.locator('[role="tab"][aria-selected="true"]:visible').first();
    if (await tab.count()) {
        await tab.focus();
        const first = await page.evaluate(() => document.activeElement.id);
        await page.keyboard.press("ArrowRight");
        const second = await page.evaluate(() => ({ id: document.activeElement.id, selected: document.activeElement.getAttribute("aria-selected"), shown: !document.getElementById(document.activeElement.getAttribute("aria-controls")).hidden }));
        await page.keyboard.press("End");
        const last = await page.evaluate(() => document.activeElement.nextElementSibling === null);
        await page.keyboard.press("Home");
        const back = await page.evaluate(() => document.activeElement.id);
        result.tabs = second.id !== first && second.selected === "true" && second.shown && last && back === first;
    }
    const chart = page.locator(".chart:visible").first();
    if (await chart.count()) {
        await chart.focus();
        const readout = () => chart.evaluate((box) => ({ text: box.parentElement.querySelector(".readout").textContent, on: box.querySelectorAll(".on").length, index: box.querySelector(".on")?.dataset.index ?? null }));
        await page.keyboard.press("ArrowRight");
        const first = await readout();
        await page.keyboard.press("End");
        const last = await readout();
        await page.keyboard.press("Escape");
        const none = await readout();
        result.chart = { first, last, none };
    }
    const folded = page.locator("summary:visible").first();
    if (await folded.count()) {
        await folded.focus();
        await page.keyboard.press("Enter");
        result.unfolds = await folded.evaluate((summary) => summary.parentElement.open);
        await page.keyboard.press("Enter");
    }
    return result;
}

/** The smallest contrast of text with what is behind it, by kind of text (WCAG 2's formula). */
function contrasts() {
    const channel = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
    const luminance = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const [r, g, b, a = 1] = parse(getComputedStyle(at).backgroundColor);
            if (a === 1) return [r, g, b];
        }
        return [255, 255, 255];
    };
    const result = {};
    for (const selector of ["p", "a", "dt", "th", "td", "summary", ".lead", ".small", ".missing", ".chip", ".word", "button", "figcaption", ".chart svg text"]) {
        for (const element of document.querySelectorAll(selector)) {
            if (!element.textContent.trim() || (element.closest(".source-view") !== null)) continue;
            const style = getComputedStyle(element);
            const colour = element instanceof SVGElement ? parse(style.fill === "none" ? style.color : style.fill) : parse(style.color);
            const [one, other] = [luminance(colour), luminance(behind(element))].sort((a, b) => b - a);
            const contrast = (one + 0.05) / (other + 0.05);
            result[selector] = Math.min(result[selector] ?? 21, Number(contrast.toFixed(2)));
        }
    }
    return result;
}

/** The part of pixels that differ visibly; 1 where the sizes do. */
function difference(page, picture, stored) {
    const of = (bytes) => `data:image/png;base64,${bytes.toString("base64")}`;
    // In a page of its own, whose policy lets pictures in.
    return page.context().newPage().then(async (blank) => {
        const part = await blank.evaluate(async ([one, other]) => {
            const load = (source) => new Promise((done, failed) => {
                const image = new Image();
                image.onload = () => done(image);
                image.onerror = failed;
                image.src = source;
            });
            const [a, b] = [await load(one), await load(other)];
            if (a.width !== b.width || a.height !== b.height) return 1;
            const pixels = (image) => {
                const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
                const context = canvas.getContext("2d");
                context.drawImage(image, 0, 0);
                return context.getImageData(0, 0, image.width, image.height).data;
            };
            const [x, y] = [pixels(a), pixels(b)];
            let differ = 0;
            for (let at = 0; at < x.length; at += 4) {
                if (Math.abs(x[at] - y[at]) + Math.abs(x[at + 1] - y[at + 1]) + Math.abs(x[at + 2] - y[at + 2]) > 48) differ += 1;
            }
            return differ / (x.length / 4);
        }, [of(picture), of(stored)]);
        await blank.close();
        return part;
    });
}

main().catch((error) => {
    console.error(`look.js: ${error.stack}`);
    process.exit(1);
});
