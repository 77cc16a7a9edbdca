//! Deliveries as the forges write them, and statuses against a recording forge.

mod deliveries;
mod statuses;
