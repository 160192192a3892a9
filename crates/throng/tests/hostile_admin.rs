//! What a peer without the key can do to the admin port: as good as nothing.

#[path = "hostile_admin/guarded.rs"]
mod guarded;
#[path = "hostile_admin/places.rs"]
mod places;
mod support;
