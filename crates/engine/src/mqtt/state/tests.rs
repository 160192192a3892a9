use model::{Data, Epoch, Message, Position, Publication};

use super::*;

fn client(subscriptions: &[Subscription]) -> Clients {
    let mut clients = Clients::default();
    let mut details = Details::default();
    details.session.subscriptions = subscriptions.to_vec();
    clients.insert(7, Row::new("c".into(), 0), Some(details));
    clients.trim(7);
    clients
}

fn subscription(filter: &str, options: SubscriptionOptions) -> Subscription {
    Subscription::new(filter.into(), None, options, 0, 0)
}

/// A row holds any subscription that is the only one, and rebuilds it from the topics of the hub.
#[test]
fn the_only_subscription_needs_no_details() {
    let options = SubscriptionOptions { qos: Qos::AtLeastOnce, ..OPTIONS_OF_ADDED };
    for filter in ["a/1", "@al", "a/+", "#", "+/b/#"] {
        let one = subscription(filter, options);
        let mut clients = client(std::slice::from_ref(&one));
        assert!(clients.is_plain(7), "{filter}");
        let topics = [Name::from("@bo"), one.hub_name().clone()];
        let topics = &topics[usize::from(filter == "@al")..];
        assert_eq!(clients.subscriptions(7, topics.iter()), std::slice::from_ref(&one));
        assert_eq!(clients.only_options(7, one.hub_name()), Some(options));
        assert_eq!(clients.only_options(7, "*"), None);
        assert!(clients.details_or_new(7, topics.iter()).is_some());
        assert_eq!(clients.subscriptions(7, [].iter()), [one]);
    }
}

#[test]
fn what_a_row_cannot_say_stays_in_the_details() {
    let own = SubscriptionOptions { no_local: true, ..OPTIONS_OF_ADDED };
    let below = SubscriptionOptions { below_only: true, ..OPTIONS_OF_ADDED };
    let group = Subscription::new("a/+".into(), Some("g".into()), OPTIONS_OF_ADDED, 0, 0);
    let numbered = Subscription::new("a".into(), None, OPTIONS_OF_ADDED, 1, 0);
    let one = |filter, options| vec![subscription(filter, options)];
    let two = [one("a", OPTIONS_OF_ADDED), one("b", OPTIONS_OF_ADDED)].concat();
    let all = [one("a/+", own), one("a/#", below), vec![group], vec![numbered], two];
    for subscriptions in all.into_iter().chain([one("*", OPTIONS_OF_ADDED)]) {
        let clients = client(&subscriptions);
        assert!(!clients.is_plain(7), "{subscriptions:?}");
        assert_eq!(clients.subscriptions(7, [].iter()), subscriptions);
    }
    assert!(client(&one("a", own)).is_plain(7), "a topic's name says all");
}

/// Members that want a message alike share one encoding, whether it comes by a topic or by a filter.
#[test]
fn members_of_a_filter_share_an_encoding() {
    let shares = |options, list: &str, qos| {
        let publication = Publication { qos, ..Publication::new("a/1", Data::Text("x".into())) };
        let id = Position { epoch: Epoch(1), offset: 1 };
        let messages = [Arc::new(Message::new(publication, id, 1, 0).into())];
        client(&[subscription("a/+", options)]).shares(7, Some(list), messages.iter())
    };
    let list = model::name::filter(None, "a/+");
    let confirmed = SubscriptionOptions { qos: Qos::AtLeastOnce, ..OPTIONS_OF_ADDED };
    assert!(shares(OPTIONS_OF_ADDED, &list, Qos::ExactlyOnce));
    assert!(shares(confirmed, &list, Qos::AtMostOnce));
    assert!(!shares(confirmed, &list, Qos::AtLeastOnce));
    assert!(shares(confirmed, "a/1", Qos::ExactlyOnce), "the application has put it there");
}
