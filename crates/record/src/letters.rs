//! Letters that are not shown but obeyed: by a terminal, or by whoever lays out a line.
//! Not here: what becomes of them; a name that holds one is refused, other text is shown without.

/// Whether a terminal or a viewer would obey the letter: control characters; marks that embed, override or isolate a direction of
/// writing (U+202A to U+202E, U+2066 to U+2069), which show a line in another order than it has; and the line and paragraph
/// separators U+2028 and U+2029.
pub fn is_obeyed(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a name can be shown as it is.
///
/// # Errors
/// It holds a letter that [`is_obeyed`]; the name is in the sentence, written in ASCII.
pub(crate) fn plain(name: &str) -> Result<(), String> {
    if !name.contains(is_obeyed) {
        return Ok(());
    }
    let shown: String = name.chars().flat_map(char::escape_default).take(200).collect();
    Err(format!("the name '{shown}' holds a control character, expected letters"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reorders_or_ends_a_line_is_obeyed_and_other_letters_are_not() {
        for letter in "\u{1b}\n\t\0\u{7f}\u{85}\u{9b}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}".chars() {
            assert!(is_obeyed(letter), "{letter:?}");
            let why = plain(&format!("a{letter}b")).err().unwrap_or_default();
            assert!(why.is_ascii() && !why.contains(char::is_control) && why.contains("control character"), "{why:?}");
        }
        // Thin spaces, joiners and letters written from right to left are text.
        for letter in "a\u{a0}é\u{200d}\u{200f}\u{2027}\u{202f}\u{2065}\u{206a}א字".chars() {
            assert!(!is_obeyed(letter) && plain(&letter.to_string()).is_ok(), "{letter:?}");
        }
    }
}
