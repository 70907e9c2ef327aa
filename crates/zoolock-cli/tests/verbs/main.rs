//! Tests that run the command `zoolock`: one module for each verb or property, and the guide.

mod at_night;
mod auth;
mod bad_input;
mod common;
mod doctor;
mod guide;
mod history;
mod json;
mod keep;
mod killed;
mod kinds;
mod leader;
mod limits;
mod list;
mod local;
mod lock_delay;
mod loss;
mod manual;
mod metrics;
mod nested;
mod outages;
mod reaper;
mod run;
mod serve;
mod server_choice;
mod shells;
mod short_help;
mod signals;
mod starter;
mod suspend;
mod terminal;
mod top;
#[cfg(feature = "ui")]
mod ui;
mod waiting;
mod watch;
