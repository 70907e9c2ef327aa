//! `zoolock completions` and `zoolock man`.

use crate::args::{CompletionsArgs, ManArgs, completions, manual};
use crate::base::exit::{Exit, Failure};
use crate::plan::Context;
use crate::render::text::print;

impl CompletionsArgs {
    /// Runs `zoolock completions`.
    pub(crate) fn run(self, context: &Context) -> Result<Exit, Failure> {
        context.refuse_json("completions")?;
        print(&completions::script(self.shell))
    }
}

impl ManArgs {
    /// Runs `zoolock man`.
    pub(crate) fn run(self, context: &Context) -> Result<Exit, Failure> {
        context.refuse_json("man")?;
        if let Some(directory) = self.write {
            return match manual::write_all_pages(&directory) {
                Ok(()) => Ok(Exit::OK),
                Err(error) => {
                    let message = format!("cannot write to {}: {error}", directory.display());
                    Err(Failure::new(Exit::OUTPUT, message))
                }
            };
        }
        let name = self.command.as_deref();
        let page = manual::page(name).ok_or_else(|| {
            let name = name.unwrap_or_default();
            Failure::usage(format!("no command {name:?}; `zoolock --help` lists the commands"))
        })?;
        print(&page)
    }
}
