//! Tests of the real server, `throng serve`, over real sockets. One binary holds them all, since each binary would
//! compile `support` anew. scripts/test runs each test in a process of its own.

mod access;
mod api;
mod application;
mod backend;
mod backends;
#[cfg(feature = "flood")]
mod bad_server;
mod bundle;
mod clients;
mod cluster;
mod conflation;
mod connect;
mod dashboard;
mod deadlines;
#[cfg(feature = "host-tools")]
mod docs;
mod drain;
mod errors;
mod events;
#[cfg(feature = "flood")]
mod flood;
#[cfg(feature = "flood")]
mod flooding;
mod flow;
mod forward;
mod forward_backends;
mod full;
mod headers;
mod history_postgres;
mod hooks;
mod hostile;
mod hostile_admin;
mod http;
mod keys;
mod limits;
mod log;
mod login;
mod memory;
mod mqtt;
mod mqtt_clients;
mod mqtt_port;
mod mqtt_sessions;
mod mqtt_views;
#[cfg(feature = "flood")]
mod nginx;
mod nginx_proxy;
mod ops;
mod outbox;
#[cfg(feature = "host-tools")]
mod package;
mod parent;
mod phoenix;
mod process;
mod proxies;
mod public;
mod publish_programs;
mod quotas;
mod recipes;
mod recovery;
#[cfg(feature = "host-tools")]
mod release;
mod spans;
mod store;
mod subscriptions;
mod support;
mod systemd;
mod tls;
mod token_command;
mod tokens;
#[cfg(feature = "top")]
mod top;
mod trace;
mod transports;
#[cfg(feature = "tune")]
mod tune;
mod upgrade;
mod user_header;
mod wildcards;
