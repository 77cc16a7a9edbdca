//! Generates the messages of the Execution Protocol from `protocol/agent/v1/agent.proto`, without
//! `protoc`. The descriptor is kept for reflection and for the check of what may change.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // At run time: a build script of another copy of this tree may be the one that is run.
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../protocol");
    println!("cargo:rerun-if-changed={}", root.join("agent").display());
    let descriptors = protox::compile(["agent/v1/agent.proto"], [&root])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    let encoded = prost::Message::encode_to_vec(&descriptors);
    std::fs::write(out.join("agent.bin"), encoded)?;
    let mut config = prost_build::Config::new();
    // Log bytes are handed on, not copied.
    config.bytes(["."]);
    config.compile_fds(descriptors)?;
    Ok(())
}
