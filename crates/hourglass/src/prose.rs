//! Lines for a person, broken at 100 columns.
//! Not here: tables, whose widths are their own.

pub(crate) const COLUMNS: usize = 100;

/// `lead` as it is, then `words`, broken at spaces; following lines begin with `indent`. Ends with a line end.
pub(crate) fn paragraph(lead: &str, words: &str, indent: &str) -> String {
    let mut text = lead.to_owned();
    let mut column = lead.chars().count();
    let mut fresh = true;
    for word in words.split_whitespace() {
        let width = word.chars().count();
        if !fresh && column + 1 + width > COLUMNS {
            text.push('\n');
            text += indent;
            column = indent.chars().count();
        } else if !fresh {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += width;
        fresh = false;
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_break_at_spaces() {
        let text = paragraph("lead: ", &"word ".repeat(50), "    ");
        assert!(text.lines().count() == 3 && text.lines().all(|line| line.len() <= COLUMNS), "{text}");
        assert!(text.starts_with("lead: word") && text.lines().skip(1).all(|line| line.starts_with("    word")));
        assert_eq!(paragraph("  ", "a  b", ""), "  a b\n");
        let word = "x".repeat(120);
        assert_eq!(paragraph("", &word, ""), format!("{word}\n"), "a word is never broken");
    }
}
