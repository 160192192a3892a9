//! OTLP: spans and the collector's response in protobuf.

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as ProtoKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{
    ResourceSpans, ScopeSpans, Span as ProtoSpan, SpanFlags, Status,
};
use prost::Message;

use super::{AttributeValue, Span, SpanKind};

/// The flag of a span whose trace is recorded, in the flags of W3C Trace Context.
const SAMPLED: u32 = 1;

/// The body of a request with these spans of a node.
pub(super) fn encode(node: &str, spans: Vec<Span>) -> Vec<u8> {
    let of_resource = [
        ("service.name", "throng"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", node),
    ];
    let resource = Resource {
        attributes: of_resource
            .map(|(key, text)| attribute(key, Any::StringValue(text.into())))
            .into(),
        ..Resource::default()
    };
    let scope = InstrumentationScope { name: "throng".into(), ..InstrumentationScope::default() };
    let spans = spans.into_iter().map(proto_span).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let resource_spans =
        vec![ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

fn attribute(key: &str, value: Any) -> KeyValue {
    KeyValue {
        key: key.into(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn proto_span(span: Span) -> ProtoSpan {
    let value = |value| match value {
        AttributeValue::Text(text) => Any::StringValue(text),
        AttributeValue::Number(number) => Any::IntValue(i64::try_from(number).unwrap_or(i64::MAX)),
    };
    let attributes = span.attributes.into_iter().map(|(key, it)| attribute(key, value(it)));
    let kind = match span.kind {
        SpanKind::Server => ProtoKind::Server,
        SpanKind::Internal => ProtoKind::Internal,
        SpanKind::Client => ProtoKind::Client,
    };
    let is_remote = match span.parent {
        Some(parent) if parent.is_remote => SpanFlags::ContextIsRemoteMask as u32,
        Some(_) | None => 0,
    };
    let status = span.error.map(|message| Status { message, code: StatusCode::Error.into() });
    ProtoSpan {
        trace_id: span.context.trace_id.into(),
        span_id: span.context.span_id.into(),
        parent_span_id: span.parent.map(|it| it.span_id.into()).unwrap_or_default(),
        flags: SAMPLED | SpanFlags::ContextHasIsRemoteMask as u32 | is_remote,
        name: span.name.into(),
        kind: kind.into(),
        start_time_unix_nano: span.start_us.saturating_mul(1_000),
        end_time_unix_nano: span.end_us.max(span.start_us).saturating_mul(1_000),
        attributes: attributes.collect(),
        status,
        ..ProtoSpan::default()
    }
}

/// Returns how many spans of a request the collector rejects, by its response. One that is no protobuf rejects none.
pub(super) fn rejected_spans(response: &[u8]) -> u64 {
    let response = ExportTraceServiceResponse::decode(response).unwrap_or_default();
    let rejected = response.partial_success.map_or(0, |it| it.rejected_spans);
    u64::try_from(rejected).unwrap_or_default()
}
