//! Bugs that are planted on purpose, to test the simulator itself. They are in the simulated world around the kernel,
//! and exist only in the tests of this crate.

/// A bug that the simulator must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    /// The store acknowledges the intent of a once attempt before it is durable.
    SkipIntent,
    /// The store acknowledges the end of a run before it is durable.
    AnswerEarly,
    /// The store accepts writes of an owner that lost the run.
    StaleEpoch,
    /// A suspended run records that it examined messages that it never saw.
    LoseExamined,
    /// Every generation uses the idempotency keys of the first.
    ReuseKeys,
    /// A claimed run lists none of its doubts until it reaches them again.
    ForgetDoubts,
    /// Shared admission grants a key that another operation holds.
    DoubleGrant,
    /// The clock of a worker does not count the time in which the worker stood still.
    StandingClock,
    /// The roster drops the request for a run that was found due while its previous owner was still here: a lost
    /// wake-up.
    #[cfg_attr(not(test), expect(dead_code, reason = "planted in the kernel by its own tests"))]
    ForgetRequests,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Plant>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug for everything this thread does from now on.
#[cfg(test)]
pub(super) fn plant(plant: Option<Plant>) {
    PLANTED.set(plant);
}

/// Whether this bug is planted.
#[cfg(test)]
pub(super) fn planted(plant: Plant) -> bool {
    PLANTED.get() == Some(plant)
}

/// Outside of tests no bug is planted.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn planted(_: Plant) -> bool {
    false
}
