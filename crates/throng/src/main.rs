//! throng
fn main() {}
