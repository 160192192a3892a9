//! Attacks on the admin port by peers without the key.

mod guarded;
mod slots;
