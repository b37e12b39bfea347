//! The HTML file: style, library, script and data in one page that may not ask anything of any network.
//! Not here: what is in the data, and what the script makes of it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const TEMPLATE: &str = include_str!("../../assets/report/page.html");
const STYLE: &str = include_str!("../../assets/report/style.css");
const PLOT: &str = include_str!("../../assets/vendor/plot.min.js");

/// In the order in which they need each other; they share one scope, which holds the records as `DATA`.
const MODULES: &[&str] = &[
    include_str!("../../assets/report/dom.js"),
    include_str!("../../assets/report/format.js"),
    include_str!("../../assets/report/table.js"),
    include_str!("../../assets/report/chart.js"),
    include_str!("../../assets/report/records.js"),
    include_str!("../../assets/report/section-verdict.js"),
    include_str!("../../assets/report/section-clock.js"),
    include_str!("../../assets/report/section-climb.js"),
    include_str!("../../assets/report/section-phases.js"),
    include_str!("../../assets/report/section-operators.js"),
    include_str!("../../assets/report/section-roofline.js"),
    include_str!("../../assets/report/section-shapes.js"),
    include_str!("../../assets/report/section-timeline.js"),
    include_str!("../../assets/report/section-kernels.js"),
    include_str!("../../assets/report/section-lines.js"),
    include_str!("../../assets/report/section-wiring.js"),
    include_str!("../../assets/report/section-memory.js"),
    include_str!("../../assets/report/section-comparisons.js"),
    include_str!("../../assets/report/section-decisions.js"),
    include_str!("../../assets/report/section-conditions.js"),
    include_str!("../../assets/report/sections.js"),
];
/// After them: the whole report, or one section in another page.
const MAIN: &str = include_str!("../../assets/report/main.js");
const FIGURE: &str = include_str!("../../assets/report/figure.js");

/// The page around `json`.
pub(super) fn page(json: &str) -> String {
    let script = format!(
        "((DATA) => {{\n\"use strict\";\n{}{MAIN}}})(JSON.parse(document.getElementById(\"data\").textContent));\n",
        MODULES.concat()
    );
    // Only these two scripts may run, nothing may be fetched; charts set styles, which cannot fetch either.
    let policy = format!(
        "default-src 'none'; script-src {} {}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
        source_of(PLOT),
        source_of(&script)
    );
    let data = inert(json);
    let mut page = String::with_capacity(TEMPLATE.len() + STYLE.len() + PLOT.len() + script.len() + data.len());
    let mut rest = TEMPLATE;
    // Piece by piece: what was put in is not searched for further places.
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").expect("the template closes its places");
        page.push_str(before);
        page.push_str(match name {
            "policy" => &policy,
            "style" => STYLE,
            "data" => &data,
            "plot" => PLOT,
            "script" => &script,
            other => unreachable!("the template has a place '{other}' that nothing fills"),
        });
        rest = after;
    }
    page.push_str(rest);
    page
}

/// A script that draws, in any page, each element of class `hourglass-figure` from what `window.hourglassFigures` holds under the
/// name in its `data-figure`. What cannot be drawn is said in its place, and is an error on the console.
pub(super) fn figures() -> String {
    let style = STYLE.replace(":root", ":host").replace("body {", ".figure {");
    let style =
        serde_json::Value::from(format!("{style}\n.figure {{ padding: 0.5rem 1rem; border: 1px solid var(--line); }}"));
    format!(
        "{PLOT}\n(() => {{\nconst draw = (DATA, PLACE, STYLE) => {{\n\"use strict\";\n{}{FIGURE}}};\n\
         for (const place of document.querySelectorAll(\".hourglass-figure\")) {{\n\
         try {{ draw(window.hourglassFigures[place.dataset.figure], place, {style}); }}\n\
         catch (error) {{ place.textContent = `This figure cannot be drawn: ${{error.message}}`; console.error(error); }}\n\
         }}\n}})();\n",
        MODULES.concat()
    )
}

/// How a policy names a script: by its SHA-256.
fn source_of(script: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(script)))
}

/// JSON that ends no script element and starts no comment, whatever its strings hold: `<` stands only in strings, where it may
/// be written as an escape.
pub(super) fn inert(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn no_string_leaves_the_data() {
        let hostile = serde_json::json!({"a": "</script><script>alert(1)</script><!--", "b": "\u{2028}{{script}}"});
        let inert = inert(&hostile.to_string());
        assert!(!inert.contains('<') && !inert.contains('\u{2028}'));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&inert).unwrap(), hostile);
        let page = page(&hostile.to_string());
        assert_eq!(page.matches("</script>").count(), 3);
        assert_eq!(page.matches("{{script}}").count(), 1);
    }

    #[test]
    fn the_assets_can_stand_in_a_page() {
        for script in MODULES.iter().chain([&PLOT, &MAIN, &FIGURE]) {
            assert!(!script.to_lowercase().contains("</script") && !script.contains("<!--"));
        }
        assert!(!STYLE.to_lowercase().contains("</style") && !STYLE.contains("url("));
    }

    /// Against `printf 'abc' | openssl dgst -sha256 -binary | base64`.
    #[test]
    fn a_script_is_named_by_its_hash() {
        assert_eq!(source_of("abc"), "'sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0='");
    }
}
