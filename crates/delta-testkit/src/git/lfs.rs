//! Git LFS as far as a download goes: the list of where files are, and the files, which lie in the
//! folder `lfs` beside the repositories, each under its hash.

use std::net::SocketAddr;
use std::path::Path;

/// The files of a server.
pub(super) struct Files<'a> {
    pub root: &'a Path,
    pub addr: SocketAddr,
    /// Where it says that they are, if not here.
    pub elsewhere: Option<&'a str>,
}

impl Files<'_> {
    /// Nothing where the request is not about large files.
    pub fn answer(&self, method: &str, path: &str, body: &[u8]) -> Option<(u16, String, Vec<u8>)> {
        if let Some(hash) = path.strip_prefix("/lfs/") {
            let plain = hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            let file = std::fs::read(self.root.join("lfs").join(hash));
            return Some(match file {
                Ok(file) if plain => (200, String::new(), file),
                _ => (404, String::new(), Vec::new()),
            });
        }
        if method != "POST" || !path.ends_with("/info/lfs/objects/batch") {
            return None;
        }
        let text = String::from_utf8_lossy(body);
        let objects: Vec<String> = hashes(&text)
            .into_iter()
            .map(|hash| self.object(&hash))
            .collect();
        let json = format!(
            r#"{{"transfer": "basic", "objects": [{}]}}"#,
            objects.join(",")
        );
        let kind = "Content-Type: application/vnd.git-lfs+json\r\n".to_owned();
        Some((200, kind, json.into_bytes()))
    }

    fn object(&self, hash: &str) -> String {
        let size = std::fs::metadata(self.root.join("lfs").join(hash))
            .map_or(0, |metadata| metadata.len());
        let here = format!("http://{}", self.addr);
        let place = format!("{}/lfs/{hash}", self.elsewhere.unwrap_or(&here));
        let actions = format!(r#"{{"download": {{"href": "{place}"}}}}"#);
        format!(r#"{{"oid": "{hash}", "size": {size}, "actions": {actions}}}"#)
    }
}

/// Every word of 64 hexadecimal digits.
fn hashes(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_hexdigit());
    words
        .filter(|word| word.len() == 64)
        .map(str::to_owned)
        .collect()
}
