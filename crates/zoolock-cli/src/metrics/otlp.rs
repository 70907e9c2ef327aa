//! Pushes metrics to an OpenTelemetry collector. This module uses OTLP over HTTP in the JSON
//! encoding, which needs no OpenTelemetry crate.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zoolock_client::resolve;

use super::family::{Distribution, MetricFamily, SeriesPoint, SeriesValue};

/// Default path and port of a collector.
const DEFAULT_PATH: &str = "/v1/metrics";
const DEFAULT_PORT: u16 = 4318;
/// Maximum duration of a push.
const PUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of the collector's answer that are read.
const MAX_ANSWER: u64 = 64 << 10;
/// `AGGREGATION_TEMPORALITY_CUMULATIVE` of OTLP.
const CUMULATIVE: u8 = 2;

/// A collector, given as `http://HOST:PORT/PATH`. The port and the path are optional.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collector {
    /// Host name or address. An IPv6 address has no brackets here.
    host: String,
    port: u16,
    path: String,
    /// Host and port as given, for the `Host` header.
    authority: String,
}

impl FromStr for Collector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hint = "write it as http://HOST:4318";
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => {
                return Err(
                    "https is not supported; push to a collector on this host that forwards over https"
                        .to_owned(),
                );
            }
            _ => return Err(hint.to_owned()),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.is_empty()
            || rest.contains(|c: char| c.is_control() || c.is_whitespace() || c == '@' || c == '?')
        {
            return Err(hint.to_owned());
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !authority.ends_with(']') => {
                let port = port.parse::<u16>().ok().filter(|port| *port > 0);
                (host, port.ok_or_else(|| format!("invalid port; {hint}"))?)
            }
            _ => (authority, DEFAULT_PORT),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(hint.to_owned());
        }
        let path = if path.len() > 1 { path } else { DEFAULT_PATH };
        Ok(Self { host: host.to_owned(), port, path: path.to_owned(), authority: authority.to_owned() })
    }
}

impl Collector {
    /// Sends the current values of all series. `since` is the time at which counting began.
    pub(super) async fn push(&self, families: &[MetricFamily], since: SystemTime) -> Result<(), String> {
        let body = request(families, since, SystemTime::now()).to_string();
        let pushed = timeout(PUSH_TIMEOUT, self.post(&body)).await;
        let status = match pushed {
            Err(_) => return Err(format!("no answer within {PUSH_TIMEOUT:?}")),
            Ok(Err(error)) => return Err(error.to_string()),
            Ok(Ok(status)) => status,
        };
        if status.starts_with('2') { Ok(()) } else { Err(format!("it answers {status:?}")) }
    }

    async fn post(&self, body: &str) -> std::io::Result<String> {
        let addresses = resolve(&self.host, self.port).await.map_err(std::io::Error::other)?;
        let mut stream = TcpStream::connect(&*addresses).await?;
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.path,
            self.authority,
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer);
        let line = answer.lines().next().unwrap_or_default();
        Ok(line.split_once(' ').map_or(line, |(_, status)| status).to_owned())
    }
}

/// Returns an `ExportMetricsServiceRequest`.
fn request(families: &[MetricFamily], since: SystemTime, now: SystemTime) -> Json {
    let (since, now) = (nanos(since), nanos(now));
    let metrics: Vec<Json> = families.iter().filter_map(|family| metric(family, &since, &now)).collect();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    json!({ "resourceMetrics": [{
        "resource": { "attributes": [
            attribute("service.name", "zoolock"),
            attribute("service.version", env!("CARGO_PKG_VERSION")),
            attribute("service.instance.id", &format!("{host}:{}", std::process::id())),
            attribute("host.name", &host),
        ] },
        "scopeMetrics": [{
            "scope": { "name": "zoolock", "version": env!("CARGO_PKG_VERSION") },
            "metrics": metrics,
        }],
    }] })
}

fn metric(family: &MetricFamily, since: &str, now: &str) -> Option<Json> {
    let kind = match family.points.first()?.value {
        SeriesValue::Counter(_) => "sum",
        SeriesValue::Gauge(_) => "gauge",
        SeriesValue::Histogram(_) => "histogram",
    };
    let points: Vec<Json> = family.points.iter().map(|point| data_point(point, since, now)).collect();
    let mut data = json!({ "dataPoints": points });
    if kind != "gauge" {
        data["aggregationTemporality"] = CUMULATIVE.into();
    }
    if kind == "sum" {
        data["isMonotonic"] = true.into();
    }
    let mut metric = json!({ "name": family.name, "description": family.help, "unit": family.unit });
    metric[kind] = data;
    Some(metric)
}

/// Returns a data point. OTLP encodes 64-bit integers as strings in JSON.
fn data_point(point: &SeriesPoint, since: &str, now: &str) -> Json {
    let attributes: Vec<Json> = point.labels.iter().map(|(key, value)| attribute(key, value)).collect();
    let mut json = json!({ "attributes": attributes, "timeUnixNano": now });
    match &point.value {
        SeriesValue::Gauge(value) => json["asDouble"] = (*value).into(),
        SeriesValue::Counter(value) => json["asInt"] = value.to_string().into(),
        SeriesValue::Histogram(Distribution { bounds, counts, sum }) => {
            json["count"] = counts.iter().sum::<u64>().to_string().into();
            json["sum"] = (*sum).into();
            json["bucketCounts"] = counts.iter().map(u64::to_string).collect();
            json["explicitBounds"] = bounds.iter().copied().collect();
        }
    }
    if !matches!(point.value, SeriesValue::Gauge(_)) {
        json["startTimeUnixNano"] = since.into();
    }
    json
}

fn attribute(key: &str, value: &str) -> Json {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn nanos(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

#[cfg(test)]
mod tests {
    use super::super::registry::tests::filled;
    use super::*;

    #[test]
    fn collector_url_is_parsed() {
        let parsed = |text: &str| text.parse::<Collector>();
        let usual = parsed("http://otel:4318").expect("well formed");
        assert_eq!((usual.host.as_str(), usual.port, usual.path.as_str()), ("otel", 4318, "/v1/metrics"));
        let other = parsed("http://[::1]:99/push/here").expect("well formed");
        assert_eq!((other.host.as_str(), other.port, other.path.as_str()), ("::1", 99, "/push/here"));
        assert_eq!(parsed("http://otel/").expect("well formed").port, 4318);
        for bad in [
            "",
            "otel:4318",
            "http://",
            "http://:1",
            "http://a:b",
            "http://a b",
            "http://me:x@h",
            "https://otel",
        ] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn request_has_otlp_form() {
        let since = UNIX_EPOCH + Duration::from_secs(1);
        let request = request(&filled().families(), since, since + Duration::from_secs(1));
        let metrics = &request["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
        let (gauge, sum, histogram) = (&metrics[0]["gauge"], &metrics[1]["sum"], &metrics[2]["histogram"]);
        assert_eq!(gauge["dataPoints"][0]["asDouble"], 2.0);
        assert_eq!((&sum["isMonotonic"], &sum["aggregationTemporality"]), (&true.into(), &2.into()));
        assert_eq!(sum["dataPoints"][0]["asInt"], "3");
        assert_eq!(sum["dataPoints"][0]["startTimeUnixNano"], "1000000000");
        assert_eq!(sum["dataPoints"][0]["attributes"][0], attribute("kind", "mutex"));
        let point = &histogram["dataPoints"][0];
        let length = |name: &str| point[name].as_array().expect("a list").len();
        assert_eq!(length("bucketCounts"), length("explicitBounds") + 1);
        assert_eq!((&point["count"], &metrics[2]["unit"]), (&"4".into(), &"s".into()));
    }
}
