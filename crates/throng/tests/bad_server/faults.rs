//! Each fault of a server has its name in the result of a run, and its exact number.

use super::{BadServer, EVERY, Fault, GOOD_MESSAGES, STALL};
use crate::flooding::{Ended, Flood, LONG, all_at_once, flood};

const CROWD: u64 = 100;

/// One topic, until there were some twenty messages.
fn one_topic(fault: Fault) -> Ended {
    let server = BadServer::start(fault);
    let run = format!("one-topic {} -c {CROWD} --messages 20", server.arguments());
    let mut run = Flood::start(&format!("{run} --hold {LONG}"));
    run.until_count("published", 22);
    run.stop()
}

/// A crowd that hears nothing and is told nothing.
fn hold(fault: Fault, further: &str) -> Ended {
    let server = BadServer::start(fault);
    flood(&format!("hold http://{}/sse -c {CROWD} --hold 0 {further}", server.address))
}

#[test]
fn an_honest_server_has_no_fault() {
    one_topic(Fault::None).all_is_well(CROWD).each_came_to(CROWD);
}

#[test]
fn what_is_done_to_messages_is_counted_for_what_it_is() {
    // The fault counted, how often for so many publishes, and how many messages come.
    type Case = (Fault, &'static str, fn(u64) -> u64, fn(u64) -> u64);
    let cases: [Case; 3] = [
        (Fault::Drops, "lost", |n| n / EVERY, |n| n - n / EVERY),
        (Fault::Duplicates, "duplicated", |n| n / EVERY, |n| n + n / EVERY),
        (Fault::Swallows, "lost", |n| n - GOOD_MESSAGES, |_| GOOD_MESSAGES),
    ];
    all_at_once(&cases, |(fault, name, count, messages)| {
        let end = one_topic(*fault);
        let published = end.count("published");
        end.faults([(name, count(published) * CROWD)]);
        end.counts([("messages", messages(published) * CROWD), ("open", CROWD)]);
    });
}

#[test]
fn messages_that_change_places_are_out_of_order_and_not_lost() {
    let end = one_topic(Fault::Reorders);
    let published = end.count("published");
    // The server still holds the last one when it has no partner.
    let (pairs, alone) = (published / 2, published % 2);
    end.faults([("out_of_order", pairs * CROWD), ("lost", alone * CROWD)]);
    end.counts([("messages", pairs * 2 * CROWD)]);
}

#[test]
fn a_stall_shows_in_the_times_of_delivery_and_loses_nothing() {
    let server = BadServer::start(Fault::Stalls);
    let run = format!("one-topic {} -c {CROWD} --messages 20", server.arguments());
    let mut run = Flood::start(&format!("{run} --hold {LONG}"));
    // Until what waited has come, and more.
    run.until_count("messages", (GOOD_MESSAGES + 10) * CROWD);
    let end = run.stop();
    end.all_is_well(CROWD).each_came_to(CROWD);
    let longest = end.summary["delivery"]["max_us"].as_u64().unwrap();
    assert!(u128::from(longest) >= STALL.as_micros(), "{:#}", end.summary);
    let worst = |line: &serde_json::Value| line["sample"]["delivery"]["max_us"].as_u64().unwrap();
    assert_eq!(end.samples.iter().map(worst).max(), Some(longest));
}

#[test]
fn what_comes_late_at_the_end_of_a_run_is_waited_for() {
    let server = BadServer::start(Fault::Stalls);
    let run = format!("one-topic {} -c {CROWD} --messages 20 --hold 1", server.arguments());
    flood(&format!("{run} --settle 30")).all_is_well(CROWD).each_came_to(CROWD);
}

#[test]
fn messages_of_other_topics_are_strays() {
    let server = BadServer::start(Fault::Strays);
    let rooms = format!("rooms --topics 2 --users {} --messages 20", CROWD / 2);
    let run = format!("{rooms} {} --hold {LONG}", server.arguments());
    let mut run = Flood::start(&run);
    run.until_count("published", 22);
    let end = run.stop();
    let published = end.count("published");
    let stray = published / EVERY * (CROWD / 2);
    end.faults([("strayed", stray), ("lost", stray)]);
    end.counts([("messages", published * (CROWD / 2)), ("open", CROWD)]);
}

#[test]
fn connections_that_the_server_closes_are_counted_by_how_it_did() {
    let cases = [(Fault::Closes, "closed without a word"), (Fault::Ends, "the answer ended")];
    all_at_once(&cases, |(fault, reason)| {
        let server = BadServer::start(*fault);
        let run = format!("one-topic {} -c {CROWD} --hold {LONG}", server.arguments());
        let mut run = Flood::start(&run);
        run.until_count("closed", CROWD);
        let end = run.stop();
        end.faults([("closed", CROWD)]).reasons("closes", &[(reason, CROWD)]);
        end.counts([("opened", CROWD), ("open", 0), ("messages", GOOD_MESSAGES * CROWD)]);
    });
}

#[test]
fn a_publish_that_is_refused_is_a_fault_and_no_loss() {
    let end = one_topic(Fault::RefusesPublishes);
    let (published, failed) = (end.count("published"), end.count("publish_failed"));
    assert_eq!(failed, (published + failed) / EVERY);
    end.faults([("publish_failed", failed)]).each_came_to(CROWD);
    end.reasons("failures", &[("publish: a publish was answered with status 500: ", failed)]);
}

#[test]
fn attempts_that_fail_are_counted_by_their_reason() {
    let cases = [
        (Fault::Hangs, "no answer in time"),
        (Fault::HangsUp, "closed without a word"),
        (Fault::Resets, "reset by the server"),
        (Fault::Refuses, "answered with status 503"),
        (Fault::Page, "the answer is no text/event-stream"),
        (Fault::Garbage, "the answer is not HTTP/1.1"),
    ];
    all_at_once(&cases, |(fault, reason)| {
        let end = hold(*fault, "--answer-timeout 1");
        end.faults([("failed", CROWD)]).reasons("failures", &[(reason, CROWD)]);
        end.counts([("opened", 0), ("open", 0)]);
    });
}

#[test]
fn those_who_hear_nothing_for_too_long_give_up() {
    let server = BadServer::start(Fault::None);
    let run = format!("hold http://{}/sse -c {CROWD} --silence 1", server.address);
    let mut run = Flood::start(&format!("{run} --hold {LONG}"));
    run.until_count("closed", CROWD);
    run.stop().faults([("closed", CROWD)]).reasons("closes", &[("silent for too long", CROWD)]);
}
