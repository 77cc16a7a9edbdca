//! Fault proxies.
