//! The words of a scenario: moments, spans and answers, written and read.

use delta_core::{Concurrency, Digest, Fact, Millis, Record, Reply, Span};

pub fn token(job: u32, number: u32) -> Digest {
    let mut digest = [0; 32];
    digest[..4].copy_from_slice(&job.to_be_bytes());
    digest[4..8].copy_from_slice(&number.to_be_bytes());
    digest
}

/// Equal texts, equal digests.
pub fn digest_of(text: &str) -> Digest {
    let mut digest = [0; 32];
    for (place, byte) in digest.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    digest
}

/// `mm:ss`, `mm:ss.mmm`, or `hh:mm:ss`.
pub fn moment(text: &str) -> Millis {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let seconds = whole
        .split(':')
        .fold(0i64, |sum, part| sum * 60 + part.parse::<i64>().unwrap());
    Millis(seconds * 1000 + format!("{fraction:0<3}").parse::<i64>().unwrap())
}

pub fn span(text: &str) -> Span {
    let (number, unit) = text.split_at(text.find(char::is_alphabetic).unwrap());
    let number: i64 = number.parse().unwrap();
    match unit {
        "ms" => Span(number),
        "s" => Span::secs(number),
        "m" => Span::minutes(number),
        "h" => Span::hours(number),
        other => panic!("no unit {other}"),
    }
}

pub fn shown(reply: &Reply) -> String {
    match reply {
        Reply::Created {
            replayed: false, ..
        } => "created".into(),
        Reply::Created { replayed: true, .. } => "created before".into(),
        Reply::Granted { number, .. } => format!("granted {number}"),
        Reply::Acknowledged { ttl } => format!("ack {ttl}"),
        Reply::Renewed { ttl, cancel: None } => format!("renewed {ttl}"),
        Reply::Renewed {
            ttl,
            cancel: Some(notice),
        } => {
            format!(
                "renewed {ttl} cancel {} {}",
                notice.cause.name(),
                notice.remaining
            )
        }
        Reply::Completed => "accepted".into(),
        Reply::CompletedAfterCancel => "CANCEL_REQUESTED".into(),
        Reply::CancelAcknowledged => "cancel accepted".into(),
        Reply::NotAcknowledged => "NOT_ACKED".into(),
        Reply::CancelNotRequested => "CANCEL_NOT_REQUESTED".into(),
        Reply::Stale(stale) => format!("stale {}", stale.name()),
        Reply::Done { changed: true } => "changed".into(),
        Reply::Done { changed: false } => "nothing".into(),
    }
}

/// A concurrency group, under one of two keys.
pub fn group(key: Digest, how: &str) -> Concurrency {
    Concurrency {
        group: "g".into(),
        key,
        cancel_older: how == "cancels",
    }
}

/// The edges of the latest record, in order.
pub fn facts(record: &Record) -> String {
    let words: Vec<String> = record
        .facts
        .iter()
        .filter_map(|fact| match fact {
            Fact::RunConfigured(_) => Some("run:configured".into()),
            Fact::RunMoved { event, .. } => Some(format!("run:{}", event.name())),
            Fact::AttemptMoved { event, .. } => Some(event.name().to_string()),
            Fact::LeaseMoved { event, .. } => Some(format!("lease:{}", event.name())),
            _ => None,
        })
        .collect();
    words.join(" ")
}
