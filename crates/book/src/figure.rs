//! Figures: a section of the report, drawn in a chapter by the report's own scripts from the records themselves.
//! Not here: what is drawn (`crates/hourglass/assets/report/`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::records::Records;

/// The folder of figures in the finished book.
const FOLDER: &str = "figures";
/// The script that draws them.
const DRAW: &str = "draw.js";

/// What figures need beside their chapters: files by name.
#[derive(Default)]
pub(crate) struct Figures {
    data: RefCell<BTreeMap<String, String>>,
}

impl Figures {
    /// The place of a figure in a chapter. `given` is SECTION RECORD..., then `only "TITLE"` for one chart of the section, then
    /// `caption "WORDS"`.
    ///
    /// # Errors
    /// A record that is not there; a section that none of the records is drawn in.
    pub(crate) fn place(&self, records: &Records, chapter: &Path, given: &[String]) -> Result<String> {
        let Some((section, mut rest)) = given.split_first() else { bail!("expected SECTION RECORD...") };
        let mut options: BTreeMap<&str, &str> = BTreeMap::new();
        while let [before @ .., name, words] = rest {
            if !["only", "caption"].contains(&name.as_str()) {
                break;
            }
            options.insert(name, words);
            rest = before;
        }
        let paths = rest.iter().map(|name| records.path(name)).collect::<Result<Vec<_>>>()?;
        if paths.is_empty() {
            bail!("expected a record after the section's name");
        }
        let data = hourglass::handbook::figure(section, &paths)?;
        let mut name = format!("{section}-{}", rest.join("-")).replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        name.truncate(120);
        self.data
            .borrow_mut()
            .insert(format!("{name}.js"), format!("(window.hourglassFigures ??= {{}})[\"{name}\"] = {data};\n"));
        let to = to_root(chapter);
        let only = options.get("only").map_or_else(String::new, |only| format!(" data-only=\"{}\"", escaped(only)));
        let caption = options.get("caption").map_or_else(String::new, |words| format!("\n\n*{words}*"));
        // An empty line ends the element for Markdown; none may stand inside it.
        Ok(format!(
            "<div class=\"hourglass-figure\" data-figure=\"{name}\" data-section=\"{}\"{only}>This figure is drawn by a script from {}.</div>\n\
             <script src=\"{to}{FOLDER}/{name}.js\"></script>{caption}",
            escaped(section),
            escaped(&rest.join(", ")),
        ))
    }

    /// Writes the files that figures need into the finished book.
    ///
    /// # Errors
    /// They cannot be written.
    pub(crate) fn write(&self, out: &Path) -> Result<()> {
        let folder = out.join(FOLDER);
        std::fs::create_dir_all(&folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
        let draw = (DRAW.to_owned(), hourglass::handbook::figure_script());
        for (name, text) in self.data.borrow().iter().chain([(&draw.0, &draw.1)]) {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
        }
        Ok(())
    }

    pub(crate) fn count(&self) -> usize {
        self.data.borrow().len()
    }
}

/// What draws a chapter's figures, after the last of them.
pub(crate) fn script(chapter: &Path) -> String {
    format!("\n\n<script src=\"{}{FOLDER}/{DRAW}\"></script>\n", to_root(chapter))
}

/// From a chapter to the book's root.
pub(crate) fn to_root(chapter: &Path) -> String {
    "../".repeat(chapter.components().count().saturating_sub(1))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;")
}
