//! What is asked for, by a flag and by OpenTelemetry's own variables.
//!
//! Owns their reading: what cannot be used is an error that names the variable and what to do, and
//! repeats no value that could be a secret. Nothing is exported unless an endpoint is named.

use std::time::Duration;

use hyper::Uri;

use crate::sampler::Sampler;

/// Longer than any collector takes that is worth waiting for.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longer ones would only fill the memory.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);

const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];
const PROTOCOLS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];
const HEADERS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_HEADERS",
];
const TIMEOUTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
];
const COMPRESSIONS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
];
const CERTIFICATES: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
];

/// Where spans go, and which.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub(crate) endpoint: String,
    pub(crate) timeout: Duration,
    pub(crate) sampler: Sampler,
    /// What every span is from, `service.name` among it.
    pub(crate) resource: Vec<(String, String)>,
    /// The collector's authority, in PEM, where the system does not know it.
    pub(crate) authority: Option<String>,
}

/// What is wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct BadSetting {
    pub field: String,
    pub problem: String,
    pub fix: String,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// What it is called where nobody says otherwise.
    pub service: &'a str,
    pub version: &'a str,
    /// The flag, and what it was given.
    pub flag: (&'a str, Option<&'a str>),
}

impl Settings {
    /// Nothing where nothing is to be exported.
    pub fn read(
        program: Program<'_>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Settings>, BadSetting> {
        // As the specification has it, an empty one is none.
        let given = |name: &str| variable(name).filter(|variable| !variable.trim().is_empty());
        let first = |names: [&'static str; 2]| {
            let mut names = names.into_iter();
            names.find_map(|name| Some((name, given(name)?)))
        };
        if given("OTEL_SDK_DISABLED").is_some_and(|it| it.trim().eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let (flag, asked) = program.flag;
        let endpoint = match asked {
            Some(text) => Some((flag, text.to_owned())),
            None if !exports(given("OTEL_TRACES_EXPORTER"))? => None,
            None => first(ENDPOINTS),
        };
        let Some((field, text)) = endpoint else {
            return Ok(None);
        };
        let endpoint = endpoint_of(field, &text)?;
        if let (None, Some((name, protocol))) = (asked, first(PROTOCOLS)) {
            check_protocol(name, &protocol, flag)?;
        }
        if let Some((name, text)) = first(HEADERS) {
            pairs(name, &text)?;
        }
        if let Some((name, text)) = first(COMPRESSIONS)
            && text.trim() != "none"
        {
            let problem = "can only be `none` here".to_owned();
            return Err(bad(name, problem, format!("unset {name}")));
        }
        Ok(Some(Settings {
            endpoint,
            timeout: timeout(first(TIMEOUTS))?,
            sampler: sampler(
                given("OTEL_TRACES_SAMPLER"),
                given("OTEL_TRACES_SAMPLER_ARG"),
            )?,
            resource: resource(program, &given)?,
            authority: first(CERTIFICATES).map(authority).transpose()?,
        }))
    }
}

fn bad(field: &str, problem: String, fix: String) -> BadSetting {
    BadSetting {
        field: field.to_owned(),
        problem,
        fix,
    }
}

/// Whether variables ask for OTLP.
fn exports(kind: Option<String>) -> Result<bool, BadSetting> {
    match kind.as_deref().map(str::trim) {
        None | Some("otlp") => Ok(true),
        Some("none") => Ok(false),
        Some(_) => {
            let problem = "names an exporter that is not built in".to_owned();
            let fix = "OTEL_TRACES_EXPORTER=otlp, or none".to_owned();
            Err(bad("OTEL_TRACES_EXPORTER", problem, fix))
        }
    }
}

fn endpoint_of(field: &str, text: &str) -> Result<String, BadSetting> {
    let fix = || "http://HOST:4317, or https://: the collector's address for gRPC".to_owned();
    let wrong = |problem: &str| bad(field, problem.to_owned(), fix());
    let text = text.trim();
    let uri: Uri = text.parse().map_err(|_| wrong("is no address"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(wrong("must begin with http:// or https://"));
    }
    let authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
    if authority.as_str().contains('@') {
        let problem = "holds a user or a password".to_owned();
        let fix = "put what the collector wants to see into OTEL_EXPORTER_OTLP_HEADERS".to_owned();
        return Err(bad(field, problem, fix));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(wrong("has a path, and gRPC has none"));
    }
    Ok(text.to_owned())
}

fn check_protocol(name: &str, protocol: &str, flag: &str) -> Result<(), BadSetting> {
    if protocol.trim() == "grpc" {
        return Ok(());
    }
    let problem = "asks for another protocol than grpc, the only one spoken here".to_owned();
    let fix = format!("{flag} http://HOST:4317 names the collector's address for gRPC");
    Err(bad(name, problem, fix))
}

fn timeout(given: Option<(&str, String)>) -> Result<Duration, BadSetting> {
    let Some((name, text)) = given else {
        return Ok(TIMEOUT);
    };
    let millis = text.trim().parse().ok().map(Duration::from_millis);
    let fits = |duration: &Duration| !duration.is_zero() && *duration <= LONGEST_TIMEOUT;
    millis.filter(fits).ok_or_else(|| {
        let problem = "is no number of milliseconds from 1 to 60000".to_owned();
        bad(name, problem, format!("{name}=10000"))
    })
}

fn sampler(name: Option<String>, argument: Option<String>) -> Result<Sampler, BadSetting> {
    let share = argument.map(|text| text.trim().parse::<f64>());
    let share = share.transpose().ok().filter(|it| {
        let share = it.unwrap_or(1.0);
        (0.0..=1.0).contains(&share)
    });
    let Some(name) = name else {
        return Ok(Sampler::USUAL);
    };
    let share = share.ok_or_else(|| {
        let problem = "is no number from 0 to 1".to_owned();
        bad(
            "OTEL_TRACES_SAMPLER_ARG",
            problem,
            "OTEL_TRACES_SAMPLER_ARG=0.1".to_owned(),
        )
    })?;
    Sampler::named(name.trim(), share).ok_or_else(|| {
        let problem = "is not known".to_owned();
        let fix = "always_on, always_off or traceidratio, each also with parentbased_ before it";
        bad("OTEL_TRACES_SAMPLER", problem, fix.to_owned())
    })
}

fn resource(
    program: Program<'_>,
    given: &impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, BadSetting> {
    const NAME: &str = "service.name";
    let attributes = "OTEL_RESOURCE_ATTRIBUTES";
    let mut all = match given(attributes) {
        Some(text) => pairs(attributes, &text)?,
        None => Vec::new(),
    };
    if let Some(name) = given("OTEL_SERVICE_NAME") {
        all.retain(|(key, _)| key != NAME);
        all.push((NAME.to_owned(), name));
    }
    for (key, value) in [
        (NAME, program.service),
        ("service.version", program.version),
    ] {
        if !all.iter().any(|(known, _)| known == key) {
            all.push((key.to_owned(), value.to_owned()));
        }
    }
    Ok(all)
}

fn authority((name, path): (&str, String)) -> Result<String, BadSetting> {
    std::fs::read_to_string(path.trim()).map_err(|error| {
        let fix = format!("{name} names a file of certificates in PEM");
        bad(name, format!("cannot be read: {error}"), fix)
    })
}

/// `name=value,name=value`, values with `%20` for what may not stand there. No value is repeated.
fn pairs(field: &str, text: &str) -> Result<Vec<(String, String)>, BadSetting> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty());
    let mut all = Vec::new();
    for (n, part) in parts.enumerate() {
        let pair = part
            .split_once('=')
            .map(|(name, value)| (name.trim(), value.trim()))
            .filter(|(name, _)| !name.is_empty() && name.bytes().all(is_plain))
            .and_then(|(name, value)| Some((name.to_owned(), unescaped(value)?)));
        all.push(pair.ok_or_else(|| {
            let problem = format!("has no name=value in place {}", n + 1);
            bad(field, problem, format!("{field}=name=value,other=value"))
        })?);
    }
    Ok(all)
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~/".contains(&byte)
}

/// Text with its `%20`s undone, if it is text for a header then.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    let text = String::from_utf8(bytes).ok()?;
    (!text.chars().any(char::is_control)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        flag: Option<&str>,
        variables: &[(&str, &str)],
    ) -> Result<Option<Settings>, BadSetting> {
        let program = Program {
            service: "delta-ci-server",
            version: "1",
            flag: ("--otlp-endpoint", flag),
        };
        Settings::read(program, |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const HERE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");

    #[test]
    fn nothing_is_exported_unless_somebody_says_where() {
        for variables in [
            &[][..],
            &[("OTEL_SERVICE_NAME", "x")],
            &[HERE, ("OTEL_SDK_DISABLED", "true")],
            &[HERE, ("OTEL_TRACES_EXPORTER", "none")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")],
        ] {
            assert_eq!(read(None, variables), Ok(None), "{variables:?}");
        }
        let off = [("OTEL_SDK_DISABLED", "TRUE")];
        assert_eq!(read(Some("http://c:1"), &off), Ok(None), "off is off");
    }

    #[test]
    fn the_flag_comes_before_the_variables() {
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://t:1/");
        let endpoint = |flag, variables: &[_]| read(flag, variables).unwrap().unwrap().endpoint;
        assert_eq!(endpoint(None, &[HERE]), "http://c:4317");
        assert_eq!(endpoint(None, &[HERE, traces]), "https://t:1/");
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        assert_eq!(
            endpoint(Some("http://f:1"), &[HERE, traces, http]),
            "http://f:1"
        );
    }

    #[test]
    fn who_it_is_comes_from_the_standard_variables() {
        let resource = |variables: &[_]| read(None, variables).unwrap().unwrap().resource;
        let of = |all: Vec<(String, String)>, wanted: &str| {
            let mut found = all.into_iter().filter(|(name, _)| name == wanted);
            let one = found.next().expect("there is one").1;
            assert!(found.next().is_none(), "one {wanted}");
            one
        };
        assert_eq!(of(resource(&[HERE]), "service.name"), "delta-ci-server");
        let attributes = (
            "OTEL_RESOURCE_ATTRIBUTES",
            "service.name=a, deployment.environment=x%20y",
        );
        assert_eq!(of(resource(&[HERE, attributes]), "service.name"), "a");
        let name = ("OTEL_SERVICE_NAME", "b");
        let all = resource(&[HERE, attributes, name]);
        assert_eq!(of(all.clone(), "service.name"), "b");
        assert_eq!(of(all, "deployment.environment"), "x y");
    }

    #[test]
    fn what_cannot_be_used_is_named_and_no_secret_is_repeated() {
        let endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT";
        for (name, value) in [
            (endpoint, "c:4317"),
            (endpoint, "ftp://c"),
            (endpoint, "http://"),
            (endpoint, "http://ann:hunter2@c:4317"),
            (endpoint, "http://c:4318/v1/traces"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=1,hunter2"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=%zz"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=%0a"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "=hunter2"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file"),
            ("OTEL_RESOURCE_ATTRIBUTES", "x"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
        ] {
            let bad = read(None, &[(name, value), HERE]).unwrap_err();
            assert_eq!(bad.field, name, "{value}");
            assert!(!bad.fix.is_empty(), "{bad}");
            assert!(!format!("{bad:?}").contains("hunter2"), "{bad}");
        }
        let ratio = ("OTEL_TRACES_SAMPLER", "traceidratio");
        for value in ["2", "-1", "x", "NaN"] {
            let bad = read(None, &[HERE, ratio, ("OTEL_TRACES_SAMPLER_ARG", value)]);
            assert_eq!(bad.unwrap_err().field, "OTEL_TRACES_SAMPLER_ARG", "{value}");
        }
        let bad = read(Some("x"), &[]).unwrap_err();
        assert_eq!(bad.field, "--otlp-endpoint");
    }

    #[test]
    fn headers_are_what_the_specification_says() {
        let name = "OTEL_EXPORTER_OTLP_HEADERS";
        let all = pairs(name, "api-key=a%20b, x = 1,,").unwrap();
        assert_eq!(
            all,
            [("api-key".into(), "a b".into()), ("x".into(), "1".into())]
        );
    }
}
