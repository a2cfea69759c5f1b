//! Bugs planted on purpose: a test of the tester. Outside of this crate's own tests there are none.

/// A bug that the simulator must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// A once attempt leaves the process without its intent.
    SkipIntent,
    /// An outcome leaves the process before it is durable.
    AnswerEarly,
    /// The store takes writes of an owner that lost the run.
    StaleEpoch,
    /// A suspended run claims to have examined what it never saw.
    LoseExamined,
    /// Every generation uses the keys of the first.
    ReuseKeys,
    /// A run that is taken up shows none of its doubts until it comes to them again.
    ForgetDoubts,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Plant>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in everything this thread does from now on.
#[cfg(test)]
pub(crate) fn plant(plant: Option<Plant>) {
    PLANTED.set(plant);
}

/// Whether this bug is planted.
#[cfg(test)]
pub(crate) fn planted(plant: Plant) -> bool {
    PLANTED.get() == Some(plant)
}

/// Whether this bug is planted: it is not.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn planted(_: Plant) -> bool {
    false
}
