//! The interface of everything that is compared.

use serde_json::Value;

use crate::fixture::{self, Call};

/// Something that can run the tool of [`fixture`].
///
/// The rules that keep the comparison fair:
///
/// - Values that the API takes are created in [`prepare`](Self::prepare), outside of the measured time; copies that the
///   API makes itself are measured.
/// - Arguments and results are dropped before [`run`](Self::run) returns, in measured time.
/// - A contender validates the arguments if its API can; otherwise [`validates`](Self::validates) is false.
/// - An API for batches gets the whole batch in one call; an API without one gets the calls one after another.
/// - Futures are driven as [`drive`](crate::drive) describes.
pub trait Contender {
    /// The name in the report, unique in a run. It should mention what is left out, such as validation.
    fn name(&self) -> &str;

    /// Whether arguments that do not match the schema are refused.
    fn validates(&self) -> bool {
        true
    }

    /// Makes one call in the same way as `run`, so that the result can be checked before anything is measured.
    ///
    /// # Errors
    ///
    /// The text of the refusal or failure.
    fn probe(&mut self, call: Call) -> Result<Value, String>;

    /// Prepares `batches` batches of `batch` calls each ([`fixture::batches`]). Not measured.
    fn prepare(&mut self, batch: usize, batches: usize);

    /// Makes the prepared calls and returns how many succeeded. Measured.
    fn run(&mut self) -> usize;
}

/// Checks that a contender does the work that is measured.
///
/// # Errors
///
/// When it returns a wrong result for a valid call, or when `validates` does not match its behaviour.
pub fn check(contender: &mut dyn Contender) -> anyhow::Result<()> {
    let name = contender.name().to_owned();
    let answer = contender.probe(fixture::call(0));
    let expected = fixture::body(&fixture::arguments());
    anyhow::ensure!(answer.as_ref() == Ok(&expected), "{name}: expected {expected}, got {answer:?}");

    for (broken, why) in fixture::broken_arguments() {
        let refused = contender.probe(Call { arguments: broken, ..fixture::call(0) }).is_err();
        anyhow::ensure!(
            refused == contender.validates(),
            "{name}: validates is {}, but with {why} refused is {refused}",
            contender.validates()
        );
    }

    contender.prepare(3, 2);
    let succeeded = contender.run();
    anyhow::ensure!(succeeded == 6, "{name}: {succeeded} of 6 calls succeeded");
    Ok(())
}
