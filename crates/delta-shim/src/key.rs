//! Keys that nobody guesses: of a shim's socket, of an agent's containers.

/// A fresh one. Nobody guesses it, and only the agent and its shim can read it.
pub fn fresh_key() -> String {
    let mut bytes = [0; 16];
    // Without randomness the lease's own clock is no worse a key than none at all.
    if getrandom::fill(&mut bytes).is_err() {
        bytes[..8].copy_from_slice(&crate::clock::now().0.to_be_bytes());
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
