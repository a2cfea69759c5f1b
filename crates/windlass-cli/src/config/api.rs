//! [openapi.NAME]: tools from a document.

use std::path::{Path, PathBuf};

use windlass::Tool;
use windlass_tools::net::Client;
use windlass_tools::secret::Secrets;

use super::Tools;
use super::outside::Outside;
use super::problem::Problem;
use super::view::View;

#[derive(Clone)]
pub(super) struct Api {
    file: Option<PathBuf>,
}

pub(super) fn read(_: &str, _: &View<'_>, _: &mut Outside, _: &mut Vec<Problem>) -> Option<Api> {
    None
}

impl Api {
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    pub(super) async fn tools(&self, _: &Secrets, _: &Client) -> Result<Vec<Tool>, Problem> {
        Ok(Vec::new())
    }

    pub(super) fn add(&self, _: Vec<Tool>, _: &mut Tools, _: &mut Vec<Problem>) {}
}
