//! Optional parts that most runs lack.

/// A boxed part that most runs do without, made at its first use.
pub(super) struct Rare<T>(Option<Box<T>>);

impl<T> Default for Rare<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> From<T> for Rare<T> {
    fn from(part: T) -> Self {
        Self(Some(Box::new(part)))
    }
}

impl<T> Rare<T> {
    pub(super) fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    pub(super) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    pub(super) fn take(&mut self) -> Option<T> {
        self.0.take().map(|part| *part)
    }
}

impl<T: Default> Rare<T> {
    /// The part, which is made if it is missing.
    pub(super) fn make(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}
