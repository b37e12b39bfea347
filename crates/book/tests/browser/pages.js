// Opens pages of the book in a real Chromium, from files, and prints as JSON what each of their figures became and what went wrong.
//
// usage: node pages.js PLAYWRIGHT CHROMIUM PAGE.html...
// Not here: what is right.
"use strict";
const [playwright, executablePath, ...pages] = process.argv.slice(2);
const { chromium } = require(playwright);

async function main() {
    const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
    const problems = [];
    const figures = [];
    for (const path of pages) {
        const page = await browser.newPage({ viewport: { width: 1000, height: 800 } });
        page.on("console", (message) => problems.push(`${path}: ${message.type()}: ${message.text()}`));
        page.on("pageerror", (error) => problems.push(`${path}: ${error.stack}`));
        page.on("request", (request) => {
            if (!request.url().startsWith("file://")) problems.push(`${path}: request: ${request.url()}`);
        });
        await page.goto(`file://${path}`);
        await page.waitForLoadState("load");
        const found = await page.evaluate(() => [...document.querySelectorAll(".hourglass-figure")].map((place) => ({
            name: `${place.dataset.figure} ${place.dataset.only ?? ""}`.trim(),
            drawn: place.shadowRoot !== null && place.shadowRoot.querySelectorAll("svg, table").length > 0,
            height: place.getBoundingClientRect().height,
            wide: place.scrollWidth > place.clientWidth + 1,
            text: place.shadowRoot === null ? place.textContent : "",
        })));
        figures.push(...found.map((one) => ({ page: path, ...one })));
        await page.close();
    }
    await browser.close();
    process.stdout.write(JSON.stringify({ problems, figures }));
}

main().catch((error) => {
    process.stderr.write(`${error.stack}\n`);
    process.exit(1);
});
