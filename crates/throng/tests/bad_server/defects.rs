//! The result of a run names each defect of a server with its exact count.

use super::{BadServer, Defect, EVERY, GOOD_MESSAGES, STALL};
use crate::flooding::{Ended, Flood, LONG, all_at_once, flood};

const CROWD: u64 = 100;

/// Runs one topic until the server has some twenty messages.
fn one_topic(defect: Defect) -> Ended {
    let server = BadServer::start(defect);
    let run = format!("one-topic {} -c {CROWD} --messages 20", server.arguments());
    let mut run = Flood::start(&format!("{run} --hold {LONG}"));
    run.until_count("published", 22);
    run.stop()
}

/// Runs a crowd without messages.
fn run_defect(defect: Defect, further: &str) -> Ended {
    let server = BadServer::start(defect);
    flood(&format!("hold http://{}/sse -c {CROWD} --hold 0 {further}", server.address))
}

#[test]
fn a_correct_server_has_no_errors() {
    one_topic(Defect::None).is_clean(CROWD).delivered_to(CROWD);
}

#[test]
fn lost_duplicated_and_reordered_messages_are_counted() {
    // The count to check, its value for so many publishes, and how many messages arrive.
    type Case = (Defect, &'static str, fn(u64) -> u64, fn(u64) -> u64);
    let cases: [Case; 3] = [
        (Defect::Drops, "lost", |n| n / EVERY, |n| n - n / EVERY),
        (Defect::Duplicates, "duplicated", |n| n / EVERY, |n| n + n / EVERY),
        (Defect::Swallows, "lost", |n| n - GOOD_MESSAGES, |_| GOOD_MESSAGES),
    ];
    all_at_once(&cases, |(defect, name, count, messages)| {
        let end = one_topic(*defect);
        let published = end.count("published");
        end.errors([(name, count(published) * CROWD)]);
        end.counts([("messages", messages(published) * CROWD), ("open", CROWD)]);
    });
}

#[test]
fn swapped_messages_count_as_out_of_order_and_not_as_lost() {
    let end = one_topic(Defect::Reorders);
    let published = end.count("published");
    // The server still holds the last message if it has no partner to swap with.
    let (pairs, alone) = (published / 2, published % 2);
    end.errors([("out_of_order", pairs * CROWD), ("lost", alone * CROWD)]);
    end.counts([("messages", pairs * 2 * CROWD)]);
}

#[test]
fn a_stall_shows_in_the_delivery_times_and_loses_no_message() {
    let server = BadServer::start(Defect::Stalls);
    let run = format!("one-topic {} -c {CROWD} --messages 20", server.arguments());
    let mut run = Flood::start(&format!("{run} --hold {LONG}"));
    // Runs until the delayed messages and some more have arrived.
    run.until_count("messages", (GOOD_MESSAGES + 10) * CROWD);
    let end = run.stop();
    end.is_clean(CROWD).delivered_to(CROWD);
    let longest = end.summary["delivery"]["max_us"].as_u64().unwrap();
    assert!(u128::from(longest) >= STALL.as_micros(), "{:#}", end.summary);
    let worst = |line: &serde_json::Value| line["sample"]["delivery"]["max_us"].as_u64().unwrap();
    assert_eq!(end.samples.iter().map(worst).max(), Some(longest));
}

#[test]
fn a_run_waits_for_late_messages_at_its_end() {
    let server = BadServer::start(Defect::Stalls);
    let run = format!("one-topic {} -c {CROWD} --messages 20 --hold 1", server.arguments());
    flood(&format!("{run} --settle 30")).is_clean(CROWD).delivered_to(CROWD);
}

#[test]
fn messages_of_other_topics_are_strays() {
    let server = BadServer::start(Defect::Strays);
    let scenario = format!("rooms --topics 2 --users {} --messages 20", CROWD / 2);
    let run = format!("{scenario} {} --hold {LONG}", server.arguments());
    let mut run = Flood::start(&run);
    run.until_count("published", 22);
    let end = run.stop();
    let published = end.count("published");
    let stray = published / EVERY * (CROWD / 2);
    end.errors([("strayed", stray), ("lost", stray)]);
    end.counts([("messages", published * (CROWD / 2)), ("open", CROWD)]);
}

#[test]
fn closed_connections_are_counted_by_kind_of_close() {
    let cases = [(Defect::Closes, "closed without a reason"), (Defect::Ends, "the response ended")];
    all_at_once(&cases, |(defect, reason)| {
        let server = BadServer::start(*defect);
        let run = format!("one-topic {} -c {CROWD} --hold {LONG}", server.arguments());
        let mut run = Flood::start(&run);
        run.until_count("closed", CROWD);
        let end = run.stop();
        end.errors([("closed", CROWD)]).reasons("closes", &[(reason, CROWD)]);
        end.counts([("opened", CROWD), ("open", 0), ("messages", GOOD_MESSAGES * CROWD)]);
    });
}

#[test]
fn a_rejected_publish_counts_as_failed_and_not_as_lost() {
    let end = one_topic(Defect::RefusesPublishes);
    let (published, failed) = (end.count("published"), end.count("publish_failed"));
    assert_eq!(failed, (published + failed) / EVERY);
    end.errors([("publish_failed", failed)]).delivered_to(CROWD);
    end.reasons("failures", &[("publish: a publish was answered with status 500: ", failed)]);
}

#[test]
fn failed_attempts_are_counted_by_reason() {
    let cases = [
        (Defect::Hangs, "no response in time"),
        (
            Defect::HangsUp,
            "closed without a response: if the server speaks TLS at this port, write https://, or add \
             --tls",
        ),
        (Defect::Resets, "reset by the server"),
        (Defect::Refuses, "answered with status 503"),
        (Defect::Page, "the response is not text/event-stream"),
        (Defect::Garbage, "the response is not HTTP/1.1"),
    ];
    all_at_once(&cases, |(defect, reason)| {
        let timeout = if *defect == Defect::Hangs { "--answer-timeout 2" } else { "" };
        let end = run_defect(*defect, timeout);
        end.errors([("failed", CROWD)]).reasons("failures", &[(reason, CROWD)]);
        end.counts([("opened", 0), ("open", 0)]);
    });
}

#[test]
fn silent_connections_are_given_up() {
    let server = BadServer::start(Defect::None);
    let run = format!("hold http://{}/sse -c {CROWD} --silence 2", server.address);
    let mut run = Flood::start(&format!("{run} --hold {LONG}"));
    run.until_count("closed", CROWD);
    run.stop().errors([("closed", CROWD)]).reasons("closes", &[("silent for too long", CROWD)]);
}
