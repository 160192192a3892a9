use broker::ShardDelivery;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use prost::Message;

use super::*;

fn tracer(sample_per_million: u64) -> (Arc<Tracer>, mpsc::Receiver<Span>) {
    let (queue, queued) = mpsc::channel(4);
    (Arc::new(Tracer::with_queue(sample_per_million, queue)), queued)
}

fn caller(is_sampled: bool) -> Option<SpanContext> {
    Some(SpanContext { trace_id: [7; 16], span_id: [9; 8], is_sampled })
}

#[test]
fn a_caller_decides_for_its_own_trace_and_the_node_for_others() {
    let (never, _queued) = tracer(0);
    assert!((0..1_000).all(|_| never.serve("x", None).is_none() && never.request("x").is_none()));
    assert!(never.serve("x", caller(false)).is_none());
    let span = never.serve("x", caller(true)).unwrap();
    assert_eq!(span.context().trace_id, [7; 16]);
    assert_ne!(span.context().span_id, [9; 8]);
    let (always, _queued) = tracer(MILLION);
    assert!((0..1_000).all(|_| always.serve("x", None).is_some()));
    let (first, second) = (always.request("x").unwrap(), always.request("x").unwrap());
    assert_ne!(first.context().trace_id, second.context().trace_id);
    assert!(always.serve("x", caller(false)).is_none(), "the caller records nothing");
    // 10,000 random draws miss a quarter by far less than this.
    let (some, _queued) = tracer(MILLION / 4);
    let count = (0..10_000).filter(|_| some.serve("x", None).is_some()).count();
    assert!((2_000..3_000).contains(&count), "{count}");
}

#[test]
fn spans_beyond_the_capacity_of_the_queue_are_dropped_and_counted() {
    let (tracer, mut queued) = tracer(MILLION);
    for _ in 0..6 {
        tracer.request("x").unwrap().end();
    }
    assert_eq!(tracer.counts(), [("sent", 0), ("failed", 0), ("dropped", 2)]);
    assert_eq!(std::iter::from_fn(|| queued.try_recv().ok()).count(), 4);
    tracer.request("x").unwrap().observe("news", 0).on_unobserved();
    assert_eq!(tracer.counts()[2], ("dropped", 3), "a shard could not observe a message");
    drop(queued);
    tracer.request("x").unwrap().end();
    assert_eq!(tracer.counts()[2], ("dropped", 4), "nothing sends them any more");
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|it| it.key == key).unwrap();
    match found.value.as_ref().unwrap().value.as_ref().unwrap() {
        Any::StringValue(text) => text.clone(),
        Any::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn spans_are_encoded_as_otlp() {
    let (tracer, mut queued) = tracer(MILLION);
    let mut call = tracer.serve("POST /api/publish", caller(true)).unwrap();
    call.set_number("throng.members", 3);
    call.set_text("messaging.destination.name", "news");
    let context = call.context();
    let observer = call.observe("news", 1_000_000);
    observer.on_delivered(ShardDelivery { shard: 2, members: 3, received_us: 5, sent_us: 9 });
    call.set_error("overloaded");
    call.end();
    drop(tracer.request("webhook"));
    let all: Vec<Span> = std::iter::from_fn(|| queued.try_recv().ok()).collect();
    let read = ExportTraceServiceRequest::decode(&otlp::encode("5f3a91c2", all)[..]).unwrap();
    let resource = &read.resource_spans[0];
    let of_resource = &resource.resource.as_ref().unwrap().attributes;
    assert_eq!(text(of_resource, "service.name"), "throng");
    assert_eq!(text(of_resource, "service.instance.id"), "5f3a91c2");
    let [deliver, call, request] = &resource.scope_spans[0].spans[..] else { panic!("{read:?}") };
    assert_eq!(
        (deliver.name.as_str(), &deliver.parent_span_id[..]),
        ("deliver", &context.span_id[..])
    );
    assert_eq!(
        (deliver.start_time_unix_nano, deliver.end_time_unix_nano),
        (1_000_005_000, 1_000_009_000)
    );
    assert_eq!((text(&deliver.attributes, "throng.shard"), deliver.kind), ("2".into(), 1));
    assert_eq!((&call.trace_id[..], &call.parent_span_id[..]), (&[7; 16][..], &[9; 8][..]));
    assert_eq!((&call.span_id[..], call.kind), (&context.span_id[..], 2));
    assert_eq!(text(&call.attributes, "throng.members"), "3");
    let status = call.status.as_ref().unwrap();
    assert_eq!((status.code, status.message.as_str()), (2, "overloaded"));
    assert!(call.end_time_unix_nano >= call.start_time_unix_nano);
    assert!(request.parent_span_id.is_empty() && request.kind == 3, "{request:?}");
    assert_eq!(request.status.as_ref().unwrap().message, ABANDONED);
    // Sampled; whether the parent is remote is known; it is for the call alone.
    assert_eq!([deliver.flags, call.flags, request.flags], [0x101, 0x301, 0x101]);
}

#[test]
fn a_collector_that_takes_some_spans_says_how_many_it_rejects() {
    let rejected_spans = |partial_success| {
        otlp::rejected_spans(&ExportTraceServiceResponse { partial_success }.encode_to_vec())
    };
    let partial = |rejected_spans| {
        Some(ExportTracePartialSuccess { rejected_spans, error_message: "x".into() })
    };
    assert_eq!(rejected_spans(None), 0);
    assert_eq!((rejected_spans(partial(3)), rejected_spans(partial(-3))), (3, 0));
    assert_eq!(otlp::rejected_spans(b"{\"partialSuccess\":{}}"), 0, "JSON");
}
