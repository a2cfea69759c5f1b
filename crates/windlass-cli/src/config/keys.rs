//! What a key may be: the words in which the table of keys is written. The checker, the schema for editors and the
//! reference all read the same table, so they cannot drift apart.

/// A key and what it is for.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// For people: what it does, and what holds without it.
    pub(crate) doc: &'static str,
    pub(crate) kind: Kind,
    pub(crate) required: bool,
}

/// What stands at a key.
pub(crate) enum Kind {
    Bool,
    Integer {
        least: i64,
        most: i64,
    },
    /// A text that must pass a check of its own.
    Text(&'static Form),
    /// One of these words.
    Choice(&'static [Choice]),
    List(&'static Kind),
    /// A table with these keys.
    Table(&'static Section),
    /// A table whose keys the writer chooses.
    Map(&'static Form, &'static Kind),
    /// Whichever fits the type of what was written; the first where none does.
    Either(&'static [Kind]),
    /// Anything JSON can say.
    Json,
}

/// The keys of a table.
pub(crate) struct Section {
    pub(crate) keys: &'static [Key],
    /// Keys of the same table that are written elsewhere because several tables have them.
    pub(crate) shared: &'static [&'static [Key]],
}

/// A word that may stand at a key, and what it means.
pub(crate) struct Choice {
    pub(crate) word: &'static str,
    pub(crate) doc: &'static str,
}

/// How a text is written.
pub(crate) struct Form {
    /// What it is, for a sentence: "a duration such as `5s`".
    pub(crate) what: &'static str,
    /// For editors, which cannot run the check.
    pub(crate) pattern: Option<&'static str>,
    pub(crate) check: fn(&str) -> Result<(), Complaint>,
}

/// What is wrong with a text.
pub(crate) struct Complaint {
    pub(crate) what: String,
    /// The near miss.
    pub(crate) near: Option<String>,
    /// Where in the text, in bytes, if only a part of it is wrong.
    pub(crate) at: Option<usize>,
    /// The text may be a secret.
    pub(crate) hidden: bool,
}

impl From<String> for Complaint {
    fn from(what: String) -> Self {
        Self { what, near: None, at: None, hidden: false }
    }
}

pub(crate) const fn key(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key { name, doc, kind, required: false }
}

impl Key {
    pub(crate) const fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

impl Section {
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static Key> {
        self.keys.iter().chain(self.shared.iter().copied().flatten())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name == name)
    }
}
