//! The documentation, found by topic: what a number means, how it was made, what it cannot show.
//! Not here: the documents; they are the files in `docs/`, as built in.

/// A part of a document under one heading.
pub(super) struct Section {
    /// `methods.md: Paired ratios`.
    pub(super) title: String,
    pub(super) body: &'static str,
}

const DOCUMENTS: [(&str, &str); 19] = [
    ("bench.md", include_str!("../../../../docs/bench.md")),
    ("capture.md", include_str!("../../../../docs/capture.md")),
    ("ceilings.md", include_str!("../../../../docs/ceilings.md")),
    ("climb.md", include_str!("../../../../docs/climb.md")),
    ("compare.md", include_str!("../../../../docs/compare.md")),
    ("decide.md", include_str!("../../../../docs/decide.md")),
    ("find.md", include_str!("../../../../docs/find.md")),
    ("first-decision.md", include_str!("../../../../docs/first-decision.md")),
    ("lab.md", include_str!("../../../../docs/lab.md")),
    ("lines.md", include_str!("../../../../docs/lines.md")),
    ("mcp.md", include_str!("../../../../docs/mcp.md")),
    ("methods.md", include_str!("../../../../docs/methods.md")),
    ("records.md", include_str!("../../../../docs/records.md")),
    ("reduce.md", include_str!("../../../../docs/reduce.md")),
    ("replay.md", include_str!("../../../../docs/replay.md")),
    ("report.md", include_str!("../../../../docs/report.md")),
    ("sensitivity.md", include_str!("../../../../docs/sensitivity.md")),
    ("timeline.md", include_str!("../../../../docs/timeline.md")),
    ("wiring.md", include_str!("../../../../docs/wiring.md")),
];

/// Every section, in order.
pub(super) fn sections() -> Vec<Section> {
    DOCUMENTS.iter().flat_map(|(name, text)| split(name, text)).collect()
}

/// The sections about `topic`, best first; those without a word of it are left out.
pub(super) fn about(topic: &str) -> Vec<Section> {
    let words: Vec<String> = topic
        .split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| word.len() > 1)
        .map(str::to_lowercase)
        .collect();
    let score = |section: &Section| -> usize {
        let (title, body) = (section.title.to_lowercase(), section.body.to_lowercase());
        // A word in the heading says what the section is about; ten in the body say no more than that.
        words
            .iter()
            .map(|word| if title.contains(word) { 20 } else { 0 } + body.matches(word.as_str()).count().min(10))
            .sum()
    };
    let mut scored: Vec<_> = sections().into_iter().map(|section| (score(&section), section)).collect();
    scored.retain(|(score, _)| *score > 0);
    scored.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
    scored.into_iter().map(|(_, section)| section).collect()
}

fn split(name: &str, text: &'static str) -> Vec<Section> {
    let mut sections = Vec::new();
    let (mut heading, mut start, mut at, mut fenced) = (String::new(), 0, 0, false);
    for line in text.split_inclusive('\n') {
        // A comment in a shell example is no heading.
        if line.starts_with("```") {
            fenced = !fenced;
        }
        if line.starts_with('#') && !fenced {
            if !text[start..at].trim().is_empty() {
                sections.push(Section { title: format!("{name}: {heading}"), body: &text[start..at] });
            }
            heading = line.trim_start_matches('#').trim().to_owned();
            start = at;
        }
        at += line.len();
    }
    if !text[start..].trim().is_empty() {
        sections.push(Section { title: format!("{name}: {heading}"), body: &text[start..] });
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_is_split_without_loss() {
        for (name, text) in DOCUMENTS {
            let whole: String = split(name, text).iter().map(|section| section.body).collect();
            assert_eq!(whole.trim(), text.trim(), "{name}");
        }
    }

    #[test]
    fn a_topic_finds_its_section_first() {
        assert!(about("sensitivity probe")[0].title.starts_with("sensitivity.md"));
        assert!(about("zzzz qqqq").is_empty() && about("").is_empty());
    }
}
