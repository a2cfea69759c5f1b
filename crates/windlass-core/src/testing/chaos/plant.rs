//! Bugs planted on purpose: a test of the tester. They are planted in the simulated world around the kernel, so that the
//! kernel itself has none; outside of this crate's own tests there are none at all.

/// A bug that the simulator must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    /// The store acknowledges the intent of a once attempt before it is durable.
    SkipIntent,
    /// The store acknowledges the end of a run before it is durable.
    AnswerEarly,
    /// The store takes writes of an owner that lost the run.
    StaleEpoch,
    /// A suspended run is written down as having examined what it never saw.
    LoseExamined,
    /// Every generation uses the keys of the first.
    ReuseKeys,
    /// A run that is taken up shows none of its doubts until it comes to them again.
    ForgetDoubts,
    /// The roster forgets what is asked for while a run is taken up: a lost wake-up.
    #[cfg_attr(not(test), expect(dead_code, reason = "planted in the kernel by its own tests"))]
    ForgetRequests,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Plant>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in everything this thread does from now on.
#[cfg(test)]
pub(super) fn plant(plant: Option<Plant>) {
    PLANTED.set(plant);
}

/// Whether this bug is planted.
#[cfg(test)]
pub(super) fn planted(plant: Plant) -> bool {
    PLANTED.get() == Some(plant)
}

/// Whether this bug is planted: it is not.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn planted(_: Plant) -> bool {
    false
}
