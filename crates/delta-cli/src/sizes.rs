//! Numbers of bytes as people type them: `64KiB`, `10MiB`, `2MB`, `4096`.

use delta_agent::MAX_LOG_QUOTA;

/// The least that a log may have: a page of lines and our marks.
const MIN_LOG: u64 = 4 * 1024;

/// The limit of a log.
pub fn log_limit(text: &str) -> Result<u64, String> {
    let bytes = bytes(text)?;
    if (MIN_LOG..=MAX_LOG_QUOTA).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("must be from 4KiB to 255MiB; a server keeps no more of a log".to_owned())
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let times: u64 = match unit {
        "" | "B" => 1,
        "kB" => 1000,
        "MB" => 1000 * 1000,
        "KiB" => 1024,
        "MiB" => 1024 * 1024,
        _ => return Err("is a number of B, kB, KiB, MB or MiB, such as 10MiB".to_owned()),
    };
    let number = number.parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_mul(times));
    bytes.ok_or_else(|| "is a number of B, kB, KiB, MB or MiB, such as 10MiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_read_as_it_is_meant() {
        assert_eq!(log_limit("4096"), Ok(4096));
        assert_eq!(log_limit("10MiB"), Ok(10 << 20));
        assert_eq!(log_limit("2MB"), Ok(2_000_000));
        assert_eq!(log_limit("255MiB"), Ok(MAX_LOG_QUOTA));
        for odd in [
            "",
            "MiB",
            "1",
            "256MiB",
            "10 MiB",
            "10mib",
            "-1",
            "99999999999999999999",
        ] {
            assert!(log_limit(odd).is_err(), "{odd}");
        }
    }
}
