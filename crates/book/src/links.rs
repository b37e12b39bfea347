//! Links of the finished pages: every one leads to a page, a heading, a figure or a file of the repository that is there.
//! Not here: whether a page of somebody else is there, which nobody can promise for tomorrow.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

/// How a chapter writes a link to a file of the repository.
const REPOSITORY: &str = "repo:";

/// A page: what it links to, and what can be linked to in it.
#[derive(Default)]
struct Page {
    links: BTreeSet<String>,
    ids: BTreeSet<String>,
}

/// Makes `repo:` links lead from the pages of `out` to the files of `root`, and checks every link.
///
/// # Errors
/// A page that cannot be read or written. Faults are not errors: they are returned, one sentence each, with the number of links.
pub(crate) fn settle(root: &Path, out: &Path) -> Result<(usize, Vec<String>)> {
    let mut pages: BTreeMap<PathBuf, Page> = BTreeMap::new();
    let mut files = BTreeSet::new();
    list(out, Path::new(""), &mut files)?;
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "html")) {
        let path = out.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let page = read(&text);
        if page.links.iter().any(|link| link.starts_with(REPOSITORY)) {
            let to = format!("\"{}", relative(&out.join(file), root));
            std::fs::write(&path, text.replace(&format!("\"{REPOSITORY}"), &to))
                .with_context(|| format!("{}: cannot be written", path.display()))?;
        }
        pages.insert(file.clone(), page);
    }
    let mut count = 0;
    for (file, page) in &pages {
        for link in &page.links {
            count += 1;
            if let Some(why) = fault(root, &files, &pages, file, link) {
                faults.push(format!("{}: {link}: {why}", file.display()));
            }
        }
    }
    Ok((count, faults))
}

fn fault(
    root: &Path,
    files: &BTreeSet<PathBuf>,
    pages: &BTreeMap<PathBuf, Page>,
    page: &Path,
    link: &str,
) -> Option<&'static str> {
    if let Some(target) = link.strip_prefix(REPOSITORY) {
        let path = target.split('#').next().unwrap_or_default();
        let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        return (!inside || !root.join(path).exists()).then_some("the repository has no such file");
    }
    if let Some(rest) = link.strip_prefix("https://") {
        let host = rest.split('/').next().unwrap_or_default();
        return (!host.contains('.') || rest.contains(char::is_whitespace)).then_some("it has no host");
    }
    if link.contains(':') {
        return Some("expected a page of the book, repo:PATH, or https://");
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = path.split('?').next().unwrap_or_default();
    let target = if path.is_empty() {
        page.to_path_buf()
    } else {
        let Some(target) = joined(page.parent().unwrap_or(Path::new("")), path) else {
            return Some("it leads out of the book; a file of the repository is repo:PATH");
        };
        target
    };
    if !files.contains(&target) {
        return Some("the book has no such page");
    }
    let has = |page: &Page| page.ids.contains(anchor);
    (!anchor.is_empty() && !pages.get(&target).is_some_and(has)).then_some("the page has no such heading")
}

/// `path` from `folder`, without `..`; None if it leads above where it began.
fn joined(folder: &Path, path: &str) -> Option<PathBuf> {
    let mut joined = folder.to_path_buf();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(part) => joined.push(part),
            Component::ParentDir => {
                if !joined.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(joined)
}

/// From a page to the folder `root`, with a slash at its end.
fn relative(page: &Path, root: &Path) -> String {
    let page = page.parent().unwrap_or(Path::new(""));
    let shared = page.components().zip(root.components()).take_while(|(a, b)| a == b).count();
    let up = "../".repeat(page.components().count() - shared);
    let down: PathBuf = root.components().skip(shared).collect();
    if down.as_os_str().is_empty() { up } else { format!("{up}{}/", down.display()) }
}

/// The links and ids of a page's elements.
fn read(text: &str) -> Page {
    let mut page = Page::default();
    for element in text.split('<').skip(1) {
        let Some((element, _)) = element.split_once('>') else { continue };
        for (attribute, into) in [(" href=\"", true), (" src=\"", true), (" id=\"", false)] {
            if let Some((_, rest)) = element.split_once(attribute) {
                let value = rest.split('"').next().unwrap_or_default().replace("&amp;", "&");
                if into {
                    page.links.insert(value);
                } else {
                    page.ids.insert(value);
                }
            }
        }
    }
    page
}

/// Every file below a folder, by its path from it.
fn list(folder: &Path, from: &Path, files: &mut BTreeSet<PathBuf>) -> Result<()> {
    let here = folder.join(from);
    for entry in std::fs::read_dir(&here).with_context(|| format!("{}: cannot be listed", here.display()))? {
        let entry = entry?;
        let path = from.join(entry.file_name());
        if entry.path().is_dir() {
            list(folder, &path, files)?;
        } else {
            files.insert(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn faults(link: &str) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        let out = root.path().join("target/book");
        std::fs::create_dir_all(out.join("rungs")).unwrap();
        std::fs::write(root.path().join("README.md"), "").unwrap();
        std::fs::write(out.join("index.html"), "<h1 id=\"one\">One</h1>").unwrap();
        std::fs::write(out.join("rungs/a.html"), format!("<p>see <a class=\"x\" href=\"{link}\">this</a></p>"))
            .unwrap();
        let (count, faults) = settle(root.path(), &out).unwrap();
        assert_eq!(count, 1);
        if faults.is_empty() && link.starts_with(REPOSITORY) {
            let text = std::fs::read_to_string(out.join("rungs/a.html")).unwrap();
            assert!(text.contains("href=\"../../../README.md"), "{text}");
        }
        faults
    }

    #[test]
    fn what_is_there_is_found() {
        for link in
            ["../index.html", "../index.html#one", "a.html", "repo:README.md", "repo:README.md#x", "https://a.b/c"]
        {
            assert_eq!(faults(link), [] as [String; 0], "{link}");
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        for link in [
            "index.html",
            "../index.html#two",
            "#one",
            "../../x.html",
            "repo:READ.md",
            "repo:../outside",
            "http://a.b/c",
            "https://nothing",
            "/index.html",
        ] {
            assert_eq!(faults(link).len(), 1, "{link}");
        }
    }
}
