//! `zoolock check`: tells whether a token is that of the present holder.

use serde::Serialize;
use zoolock::admin::{Entry, TokenCheck};

use crate::args::CheckArgs;
use crate::base::exit::{Exit, Failure};
use crate::plan::Context;
use crate::render::status::describe_contender;
use crate::render::text::{format_json, print};
use crate::service::connect::connect_and_request;

/// The output of `check --json`.
#[derive(Serialize)]
struct CheckReport<'a> {
    path: &'a str,
    token: String,
    current: bool,
    /// The first holder, unless the token is current.
    holder: Option<&'a Entry>,
}

impl CheckArgs {
    /// Succeeds if a holder of the lock has the token.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Context { global, reporter } = context;
        let Self { name, token } = self;
        let service = &context.connection_for(&name)?;
        let (path, answer) = connect_and_request(service, reporter, async |zoolock| {
            Ok((zoolock.mutex(&name).path(), zoolock.admin().check_token(&name, token).await?))
        })
        .await?;
        let (current, holder) = match &answer {
            TokenCheck::NotCurrent { holder, .. } => (false, holder.as_deref()),
            _ => (true, None),
        };
        if global.json {
            print(&format_json(&CheckReport { path: &path, token: token.to_string(), current, holder }))?;
        }
        if current {
            return Ok(Exit::OK);
        }
        let held = match holder {
            Some(holder) => format!("it is held by {}", describe_contender(holder)),
            None => "it is free".to_owned(),
        };
        Err(Failure::new(Exit::BUSY, format!("{name}: no holder has the token {token}; {held}")))
    }
}
