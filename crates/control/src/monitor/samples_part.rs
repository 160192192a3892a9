//! Passes the samples of the last 15 minutes to another process, so that no chart begins anew.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use handover::{Part, PartError, decode, encode};
use minicbor::{Decode, Encode};
use model::CloseReason;

use super::figure::Figure;
use super::samples::{ClosedBy, Gauges, Latency, Sample, SampleRing, Transports};

/// The samples of the last 15 minutes: those of this process, and those of the previous one.
#[derive(Clone)]
pub struct Samples(Arc<Mutex<SampleRing>>);

impl Default for Samples {
    /// No samples yet.
    fn default() -> Self {
        Samples(Arc::new(Mutex::new(SampleRing::new())))
    }
}

impl Samples {
    pub(crate) fn lock(&self) -> MutexGuard<'_, SampleRing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sample; its key is the time at which it was taken. Numbers and figures never change their positions; more may
/// follow.
#[derive(Encode, Decode)]
#[cbor(map)]
struct SampleRecord {
    #[n(0)]
    numbers: Vec<u64>,
    #[n(1)]
    figures: Vec<f32>,
    /// The percentiles 50, 90 and 99 of the latency.
    #[n(2)]
    latency_ms: Option<(f32, f32, f32)>,
    /// Connections by the transport's name.
    #[n(3)]
    transports: Vec<(String, u32)>,
    /// Connections that were closed, by the reason's name.
    #[n(4)]
    closed_by: Vec<(String, f32)>,
}

impl From<&Sample> for SampleRecord {
    fn from(sample: &Sample) -> Self {
        let gauges = &sample.gauges;
        let reasons = CloseReason::ALL.iter();
        let closed_by = reasons.map(|it| (it.name(), sample.closed_by.0[*it as usize].0));
        SampleRecord {
            numbers: vec![
                gauges.connections,
                gauges.connections_max,
                gauges.rss_bytes,
                gauges.user_bytes,
                gauges.kernel_bytes,
                gauges.outboxes,
                gauges.outbox_bytes,
                gauges.topics,
                gauges.fanouts,
                gauges.mqtt_away,
                gauges.mqtt_retained,
                gauges.mqtt_retained_bytes,
                sample.bytes_in,
                sample.bytes_out,
            ],
            figures: vec![
                gauges.user_bytes_per_connection.0,
                gauges.kernel_bytes_per_connection.0,
                sample.opened.0,
                sample.closed.0,
                sample.refused.0,
                sample.messages_in.0,
                sample.delivered.0,
                sample.answers.0,
                sample.cpu.0,
                sample.slow.0,
            ],
            latency_ms: sample.latency_ms.map(|it| (it.p50.0, it.p90.0, it.p99.0)),
            transports: gauges.transports.by_name(),
            closed_by: closed_by
                .filter(|(_, rate)| *rate > 0.0)
                .map(|(name, rate)| (name.into(), rate))
                .collect(),
        }
    }
}

impl SampleRecord {
    fn sample(self, at: u64) -> Sample {
        let number = |index: usize| self.numbers.get(index).copied().unwrap_or_default();
        let figure = |index: usize| Figure(self.figures.get(index).copied().unwrap_or_default());
        let mut closed_by = ClosedBy::default();
        for (name, rate) in &self.closed_by {
            let reason = CloseReason::ALL.iter().find(|reason| reason.name() == name);
            reason.into_iter().for_each(|it| closed_by.0[*it as usize] = Figure(*rate));
        }
        let mut transports = Transports::default();
        self.transports.iter().for_each(|(name, count)| transports.set(name, *count));
        let latency =
            |(p50, p90, p99)| Latency { p50: Figure(p50), p90: Figure(p90), p99: Figure(p99) };
        Sample {
            upgrade: None,
            by_shard: None,
            at,
            gauges: Gauges {
                connections: number(0),
                connections_max: number(1),
                transports,
                rss_bytes: number(2),
                user_bytes: number(3),
                user_bytes_per_connection: figure(0),
                kernel_bytes: number(4),
                kernel_bytes_per_connection: figure(1),
                outboxes: number(5),
                outbox_bytes: number(6),
                topics: number(7),
                fanouts: number(8),
                mqtt_away: number(9),
                mqtt_retained: number(10),
                mqtt_retained_bytes: number(11),
            },
            shards: Vec::new(),
            opened: figure(2),
            closed: figure(3),
            closed_by,
            refused: figure(4),
            messages_in: figure(5),
            delivered: figure(6),
            bytes_in: number(12),
            bytes_out: number(13),
            answers: figure(7),
            latency_ms: self.latency_ms.map(latency),
            cpu: figure(8),
            slow: figure(9),
        }
    }
}

/// The part's name, which must never change.
const SAMPLES: &str = "samples";

impl Part for Samples {
    fn name(&self) -> &'static str {
        SAMPLES
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let records: Vec<(u64, SampleRecord)> =
            self.lock().all().map(|sample| (sample.at, sample.into())).collect();
        for (at, record) in records {
            each(&at.to_be_bytes(), &encode(&record));
        }
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let at =
            key.try_into().map_err(|_| PartError::new(SAMPLES, "a time does not have 8 bytes"))?;
        let at = u64::from_be_bytes(at);
        let record: Option<SampleRecord> =
            value.map(decode).transpose().map_err(|it| PartError::new(SAMPLES, it))?;
        self.lock().replace(at, record.map(|record| record.sample(at)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use handover::Sent;
    use handover::testing::pass;
    use serde_json::to_value;

    use super::*;

    #[test]
    fn another_process_draws_the_same_charts() {
        let (old, new) = (Samples::default(), Samples::default());
        let sample = |at: u64| {
            let record = SampleRecord {
                numbers: (0..14).map(|index| at + index).collect(),
                figures: (0..10_u16).map(|index| f32::from(index) + 0.5).collect(),
                latency_ms: at.is_multiple_of(2).then_some((1.5, 2.5, 3.5)),
                transports: vec![("ws".into(), 3), ("mqtt".into(), 4), ("later".into(), 5)],
                closed_by: vec![("client".into(), 2.0), ("later".into(), 1.0)],
            };
            Sample { shards: vec![1], ..record.sample(at) }
        };
        (1..=900).for_each(|at| old.lock().push(sample(at)));
        let mut sent = Sent::new();
        let mut pass = || pass(&old, &new, &mut sent);
        let shown = |samples: &Samples| to_value(&*samples.lock()).unwrap();
        assert_eq!(pass(), 900);
        assert_eq!(shown(&new), shown(&old));
        assert_eq!(shown(&new)["transports"]["ws"][0], 3);
        // New samples replace the oldest.
        old.lock().push(sample(901));
        old.lock().push(sample(902));
        assert_eq!(pass(), 4);
        assert_eq!(shown(&new), shown(&old));
        assert!(new.import(b"short", None).is_err() && new.import(&[0; 8], Some(b"")).is_err());
    }
}
