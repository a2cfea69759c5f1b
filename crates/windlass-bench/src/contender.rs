//! The one interface every measured thing has.

use serde_json::Value;

use crate::fixture::{self, Call};

/// Something that can run the tool of [`fixture`].
///
/// The rules that keep the comparison fair:
///
/// - What the API takes by value is made in [`prepare`](Self::prepare), outside of the measured time; what it copies on
///   its own is measured.
/// - Everything handed over is gone when [`run`](Self::run) returns: arguments and results are dropped in measured time.
/// - A contender validates the arguments if its API can, and says so in [`validates`](Self::validates) if not.
/// - An API for batches gets the whole batch in one call; an API without one gets the calls one after another.
/// - Futures are driven as [`drive`](crate::drive) says.
pub trait Contender {
    /// The name in the report, unique in a run. It should tell what is left out, such as validation.
    fn name(&self) -> &str;

    /// Whether arguments that do not fit the schema are refused.
    fn validates(&self) -> bool {
        true
    }

    /// Makes one call the way `run` does, so that the answer can be checked before anything is measured.
    ///
    /// # Errors
    ///
    /// The text of the refusal or failure.
    fn probe(&mut self, call: Call) -> Result<Value, String>;

    /// Makes ready `batches` batches of `batch` calls each ([`fixture::batches`]). Not measured.
    fn prepare(&mut self, batch: usize, batches: usize);

    /// Makes the prepared calls and answers how many succeeded. Measured.
    fn run(&mut self) -> usize;
}

/// Checks that a contender does the work it is measured for.
///
/// # Errors
///
/// When it answers a good call wrongly, or when what it says of its validation is not what it does.
pub fn check(contender: &mut dyn Contender) -> anyhow::Result<()> {
    let name = contender.name().to_owned();
    let answer = contender.probe(fixture::call(0));
    let expected = fixture::body(&fixture::arguments());
    anyhow::ensure!(answer.as_ref() == Ok(&expected), "{name}: expected {expected}, got {answer:?}");

    for (broken, why) in fixture::broken_arguments() {
        let refused = contender.probe(Call { arguments: broken, ..fixture::call(0) }).is_err();
        anyhow::ensure!(
            refused == contender.validates(),
            "{name}: says validates = {}, but with {why} refused = {refused}",
            contender.validates()
        );
    }

    contender.prepare(3, 2);
    let succeeded = contender.run();
    anyhow::ensure!(succeeded == 6, "{name}: {succeeded} of 6 calls succeeded");
    Ok(())
}
