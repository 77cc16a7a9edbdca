//! A deterministic world of seeded faults, and the checkers of its history.
