//! Interned names: a trace has hundreds of thousands of slices and a few hundred names.
//! Not here: what the names are of.

use std::collections::HashMap;

/// A name's number in its trace's [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(u32);

impl Name {
    /// Position in the order of interning, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Names, each once.
#[derive(Clone, Debug, Default)]
pub struct Names {
    texts: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Names {
    /// The number of `text`, a new one if it has none yet.
    ///
    /// # Panics
    /// At 2^32 names.
    pub fn intern(&mut self, text: &str) -> Name {
        if let Some(&number) = self.numbers.get(text) {
            return Name(number);
        }
        let number = u32::try_from(self.texts.len()).expect("a trace has far fewer than 2^32 names");
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        Name(number)
    }

    /// The text of a name of this table; of a foreign one `?`.
    pub fn text(&self, name: Name) -> &str {
        self.texts.get(name.index()).map_or("?", String::as_str)
    }

    /// Whether `name` is of this table.
    pub fn holds(&self, name: Name) -> bool {
        name.index() < self.texts.len()
    }

    /// All texts by number.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }
}

// The index follows from the texts.
impl PartialEq for Names {
    fn eq(&self, other: &Names) -> bool {
        self.texts == other.texts
    }
}
