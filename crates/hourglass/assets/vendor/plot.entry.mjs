// What of Observable Plot ends up in plot.min.js: the marks that the report uses.
export { barX, dot, gridX, gridY, lineY, link, plot, rectX, ruleX, ruleY, text, tickX } from "@observablehq/plot";
