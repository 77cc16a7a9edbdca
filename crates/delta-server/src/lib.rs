//! Endpoints, identity, the writer and the duties of the control plane.
