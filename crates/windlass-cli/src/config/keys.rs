//! The types of the table of keys. The checker, the schema for editors and the reference all use the same table, so they
//! always agree.

/// A key.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// For people: what it does, and its default.
    pub(crate) doc: &'static str,
    pub(crate) kind: Kind,
    pub(crate) required: bool,
}

/// The type of a key's value.
pub(crate) enum Kind {
    Bool,
    Integer {
        least: i64,
        most: i64,
    },
    /// A string that its form accepts.
    String(&'static Form),
    /// One of these strings.
    Choice(&'static [Choice]),
    List(&'static Kind),
    /// A table with these keys.
    Table(&'static Section),
    /// A table with keys that the author of the file chooses.
    Map(&'static Form, &'static Kind),
    /// The first kind that matches the type of the value.
    Either(&'static [Kind]),
    /// Any value that JSON can represent.
    Json,
}

/// The keys of a table.
pub(crate) struct Section {
    pub(crate) keys: &'static [Key],
    /// Keys that this table has in common with others.
    pub(crate) shared: &'static [&'static [Key]],
}

/// A valid value of a key, and its meaning.
pub(crate) struct Choice {
    pub(crate) word: &'static str,
    pub(crate) doc: &'static str,
}

/// The form of a string.
pub(crate) struct Form {
    /// A description for a sentence: "a duration such as `5s`".
    pub(crate) what: &'static str,
    /// A regular expression for editors, which cannot run the check.
    pub(crate) pattern: Option<&'static str>,
    pub(crate) check: fn(&str) -> Result<(), FormError>,
}

/// Why a string does not have its form.
pub(crate) struct FormError {
    pub(crate) message: String,
    /// What was probably intended.
    pub(crate) suggestion: Option<String>,
    /// The byte of the string at which it is wrong, if known.
    pub(crate) at: Option<usize>,
    /// The string may be a secret.
    pub(crate) hidden: bool,
}

impl From<String> for FormError {
    fn from(message: String) -> Self {
        Self { message, suggestion: None, at: None, hidden: false }
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
