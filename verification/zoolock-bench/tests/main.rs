//! Tests of the benchmarks and of the examples.

mod compare;
mod fenced_sql;
mod naive;
