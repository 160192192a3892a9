//! Attacks on the admin port by peers without the key.

#[path = "hostile_admin/guarded.rs"]
mod guarded;
#[path = "hostile_admin/slots.rs"]
mod slots;
mod support;
