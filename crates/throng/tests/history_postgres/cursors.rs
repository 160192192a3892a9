//! Users' cursors, which all servers with one database share.

use super::append::migrated;
use super::*;

/// Rules for topics that users acknowledge.
const ACKNOWLEDGED: &str = "[inbox]\nenabled = true\ndurable = true\n\
     [[topics]]\npattern = \"job:*\"\nhistory_messages_max = 100\ndurable = true\nacknowledge = true\n\
     ack_window_messages_max = 2\n\
     [[topics]]\npattern = \"fails:*\"\nhistory_messages_max = 100\ndurable = true\nacknowledge = true\n\
     ack_redelivery_seconds = 1\nack_tries_max = 1\ndead_letter = \"dead\"\n\
     [[topics]]\npattern = \"dead\"\nhistory_messages_max = 100\ndurable = true\n";

/// A database, and the configuration of servers whose users acknowledge.
struct Users {
    database: Database,
    folder: Scratch,
}

impl Users {
    fn start() -> Self {
        Users { database: Database::start(), folder: Scratch::new("cursors") }
    }

    fn server(&self) -> Server {
        self.server_as("postgres")
    }

    /// Starts a server that connects as a database user.
    fn server_as(&self, user: &str) -> Server {
        let file = self.folder.write("throng.toml", ACKNOWLEDGED).display().to_string();
        let url = self.database.postgres.url(user);
        let server =
            Server::with(&["--shards", "2", "--config", &file], &[("THRONG_HISTORY_URL", &url)]);
        until_connected(&server);
        server
    }

    fn cursors(&self) -> String {
        self.database.postgres.psql(
            "SELECT string_agg(concat_ws(' ', user_name, topic, acknowledged, given_up), ',' \
             ORDER BY user_name, topic) FROM throng.history_cursors",
        )
    }
}

fn send(server: &Server, user: &str, data: u64) -> String {
    let sent = server.post("/api/send", json!({"user": user, "data": data}));
    sent["id"].as_str().unwrap().to_owned()
}

pub fn acknowledge(server: &Server, user: &str, topic: &str, id: &str) {
    let done = server.post("/api/ack", json!({"user": user, "topic": topic, "id": id}));
    assert_eq!(done["acknowledged"], id, "{done}");
}

/// Waits until a server has a cursor.
pub fn until_cursor(server: &Server, user: &str, topic: &str, id: &str) {
    let target = format!("/api/cursors/{user}?topic={topic}");
    server.until("it has the cursor", |it| it.api("GET", &target, None).1["acknowledged"] == id);
}

fn offset(id: &str) -> &str {
    id.split_once(':').unwrap().1
}

#[test]
fn an_acknowledgement_counts_at_all_servers_and_outlives_them() {
    let users = Users::start();
    let (a, b) = (users.server(), users.server());
    let ids: Vec<String> = (1..=4).map(|n| send(&a, "alice", n)).collect();
    b.until("it has all", |b| history(b, "@alice").len() == 4);
    let mut at_b = member(&b, "user=alice");
    assert_eq!(until_data(&mut at_b, &json!(4)).len(), 4);
    acknowledge(&b, "alice", "@alice", &ids[1]);
    until_cursor(&a, "alice", "@alice", &ids[1]);
    let mut at_a = member(&a, "user=alice");
    assert_eq!(data(&until_data(&mut at_a, &json!(4))), [3, 4]);
    acknowledge(&a, "alice", "@alice", &ids[2]);
    until_cursor(&b, "alice", "@alice", &ids[2]);
    drop((a, b));
    assert_eq!(users.cursors(), format!("alice @alice {} 0", offset(&ids[2])));
    let server = users.server();
    let mut back = member(&server, "user=alice");
    assert_eq!(next(&mut back).1, 4);
    assert_eq!(server.metric("throng_cursors"), 1.0);
}

#[test]
fn a_window_at_one_server_opens_by_an_acknowledgement_at_another() {
    let users = Users::start();
    let (a, b) = (users.server(), users.server());
    let mut worker = member(&a, "topic=job:1&user=bob");
    let ids: Vec<String> = (1..=4).map(|n| publish(&b, "job:1", n)).collect();
    assert_eq!([next(&mut worker).1, next(&mut worker).1], [1, 2]);
    b.until("it has all", |b| history(b, "job:1").len() == 4);
    acknowledge(&b, "bob", "job:1", &ids[1]);
    assert_eq!([next(&mut worker).1, next(&mut worker).1], [3, 4]);
}

#[test]
fn a_user_begins_once_and_gets_what_came_while_no_client_was_there() {
    let users = Users::start();
    let (a, b) = (users.server(), users.server());
    let first = publish(&a, "job:1", 0);
    drop(member(&a, "topic=job:1&user=bob"));
    until_cursor(&b, "bob", "job:1", &first);
    let id = publish(&a, "job:1", 1);
    // Another server must not let the user begin anew.
    b.until("it has both", |b| history(b, "job:1").len() == 2);
    let mut worker = member(&b, "topic=job:1&user=bob");
    assert_eq!(next(&mut worker).1, 1);
    acknowledge(&b, "bob", "job:1", &id);
    until_cursor(&a, "bob", "job:1", &id);
    drop((a, b));
    let server = users.server();
    let mut worker = member(&server, "topic=job:1&user=bob");
    publish(&server, "job:1", 2);
    assert_eq!(next(&mut worker).1, 2);
}

#[test]
fn acknowledgements_wait_while_the_database_is_away_and_are_written_afterwards() {
    let users = Users::start();
    users.database.postgres.psql("CREATE ROLE b SUPERUSER LOGIN");
    let (there, away) = (users.server(), users.server_as("b"));
    let ids: Vec<String> = (1..=3).map(|n| send(&away, "alice", n)).collect();
    acknowledge(&away, "alice", "@alice", &ids[0]);
    until_cursor(&there, "alice", "@alice", &ids[0]);
    users.database.lock_out(&away);
    acknowledge(&away, "alice", "@alice", &ids[1]);
    let mut live = member(&away, "user=alice");
    assert_eq!(next(&mut live).1, 3, "it counts here at once");
    // Meanwhile the user acknowledges another message elsewhere.
    acknowledge(&there, "alice", "@alice", &ids[2]);
    users.database.let_in();
    until_connected(&away);
    until_cursor(&away, "alice", "@alice", &ids[2]);
    assert_eq!(users.cursors(), format!("alice @alice {} 0", offset(&ids[2])), "never back");
}

#[test]
fn a_message_that_fails_at_two_servers_is_one_dead_letter() {
    let users = Users::start();
    let (a, b) = (users.server(), users.server());
    let mut workers = [&a, &b].map(|it| websocket(it, "topic=fails:1&user=bob"));
    let id = publish(&a, "fails:1", 7);
    let path = "/api/cursors/bob?topic=fails:1";
    for server in [&a, &b] {
        server.until("it is given up", |it| it.api("GET", path, None).1["given_up"] == *id);
        server.until("the letter is there", |it| history(it, "dead").len() == 1);
    }
    let letter = &history(&a, "dead")[0].1;
    assert_eq!(
        (&letter["id"], &letter["user"], &letter["data"]),
        (&json!(id), &json!("bob"), &json!(7))
    );
    // The next message has its own count.
    publish(&b, "fails:1", 8);
    for worker in &mut workers {
        let mut received = (0..20).map(|_| receive(worker));
        assert!(received.any(|message| message["data"] == 8));
    }
    let of_first = |(_, letter): &&(String, Value)| letter["id"] == *id;
    assert_eq!(history(&b, "dead").iter().filter(of_first).count(), 1);
}

#[test]
fn a_user_begins_where_another_server_knows_the_user() {
    let users = Users::start();
    users.database.postgres.psql("CREATE ROLE b SUPERUSER LOGIN");
    let (there, away) = (users.server(), users.server_as("b"));
    let first = publish(&there, "job:1", 0);
    away.until("it has the first", |away| history(away, "job:1").len() == 1);
    // The cursor of another server is there, but not committed, until this server has delivered a later message.
    let mut session = users.database.postgres.session();
    session.run("BEGIN");
    session.run(&format!(
        "UPDATE throng.history_cursors_log SET last_change = 1; INSERT INTO throng.history_cursors \
         VALUES ('bob', 'job:1', {}, 0, 1); NOTIFY throng_cursors, '\"throng\"'",
        offset(&first)
    ));
    let second = publish(&there, "job:1", 1);
    away.until("it has the second", |away| history(away, "job:1").len() == 2);
    let mut worker = member(&away, "topic=job:1&user=bob");
    let mut socket = websocket(&away, "topic=job:1&user=bob");
    let third = publish(&there, "job:1", 2);
    away.until("it has the third", |away| history(away, "job:1").len() == 3);
    publish(&there, "job:1", 3);
    // This acknowledgement of the application comes too early, and does not count.
    acknowledge(&away, "bob", "job:1", &third);
    session.run("COMMIT");
    assert_eq!([next(&mut worker).1, next(&mut worker).1], [1, 2]);
    let data = |_| receive(&mut socket)["data"].clone();
    let received: Vec<Value> = (0..20).map(data).filter(|data| !data.is_null()).take(2).collect();
    assert_eq!(received, [1, 2]);
    assert_eq!(users.cursors(), format!("bob job:1 {} 0", offset(&first)));
    acknowledge(&away, "bob", "job:1", &second);
    assert_eq!(next(&mut worker).1, 3);
    until_cursor(&there, "bob", "job:1", &second);
}

#[test]
fn a_poll_of_a_new_user_gets_what_comes_after_it() {
    let users = Users::start();
    let server = users.server();
    publish(&server, "job:1", 0);
    let poll = |server: &Server| server.get("/poll?topic=job:1&user=bob&timeout=60").1;
    let begun = poll(&server);
    assert_eq!(begun["messages"], json!([]), "it has a reply when the user has begun: {begun}");
    publish(&server, "job:1", 1);
    assert_eq!(poll(&server)["messages"][0]["data"], 1);
}

#[test]
fn a_window_opens_by_an_acknowledgement_elsewhere_while_an_earlier_one_waits() {
    let users = Users::start();
    users.database.postgres.psql("CREATE ROLE b SUPERUSER LOGIN");
    let (there, away) = (users.server(), users.server_as("b"));
    let mut worker = member(&away, "topic=job:1&user=bob");
    let ids: Vec<String> = (1..=5).map(|n| publish(&there, "job:1", n)).collect();
    assert_eq!([next(&mut worker).1, next(&mut worker).1], [1, 2]);
    away.until("it has all", |away| history(away, "job:1").len() == 5);
    users.database.lock_out(&away);
    acknowledge(&away, "bob", "job:1", &ids[0]);
    assert_eq!(next(&mut worker).1, 3);
    acknowledge(&there, "bob", "job:1", &ids[2]);
    users.database.let_in();
    until_connected(&away);
    assert_eq!([next(&mut worker).1, next(&mut worker).1], [4, 5]);
}

#[test]
fn an_acknowledgement_beyond_the_log_silences_no_connection() {
    let users = Users::start();
    let server = users.server();
    let mut live = member(&server, "user=alice");
    let id = send(&server, "alice", 1);
    assert_eq!(next(&mut live).1, 1);
    let beyond = format!("{}:999999999", id.split_once(':').unwrap().0);
    server.post("/api/ack", json!({"user": "alice", "id": beyond}));
    until_cursor(&server, "alice", "@alice", &id);
    send(&server, "alice", 2);
    assert_eq!(next(&mut live).1, 2);
}

#[test]
fn cursors_never_go_back_nor_beyond_the_log() {
    let postgres = migrated();
    postgres.psql("UPDATE throng.history_log SET last_offset = 100");
    let moves = |epoch: &str, moves: &str| {
        postgres.psql(&format!(
            "SELECT array_to_string(new_acknowledged, ',', '-'), array_to_string(new_given_up, ',') \
             FROM throng.history_move_cursors({epoch}, {moves})"
        ))
    };
    let epoch = "(SELECT epoch FROM throng.history_log)";
    let change = || postgres.psql("SELECT last_change FROM throng.history_cursors_log");
    let two = "'{a,b}', '{t,t}', '{5,NULL}', '{NULL,7}', '{0,3}'";
    assert_eq!((moves(epoch, two), change()), ("5,7|0,3".into(), "2".into()));
    assert_eq!((moves(epoch, two), change()), ("5,7|0,3".into(), "2".into()), "nothing moved");
    let back = "'{a,b}', '{t,t}', '{5,NULL}', '{NULL,6}', '{4,0}'";
    assert_eq!((moves(epoch, back), change()), ("5,7|4,3".into(), "3".into()));
    let beyond = "'{a,c}', '{t,t}', '{NULL,NULL}', '{500,NULL}', '{0,500}'";
    assert_eq!((moves(epoch, beyond), change()), ("100,-|4,100".into(), "5".into()));
    // These users began at another node before.
    let late = "'{b,c,d}', '{t,t,t}', '{20,20,20}', '{30,NULL,30}', '{0,0,0}'";
    assert_eq!((moves(epoch, late), change()), ("7,-,30|3,100,0".into(), "6".into()));
    let late = "'{b}', '{t}', '{20}', '{NULL}', '{30}'";
    assert_eq!((moves(epoch, late), change()), ("7|3".into(), "6".into()));
    let early = "'{b}', '{t}', '{2}', '{9}', '{0}'";
    assert_eq!((moves(epoch, early), change()), ("9|3".into(), "7".into()));
    assert_eq!(moves("0", two), "", "another log");
    let changes =
        "SELECT string_agg(user_name || change, ',' ORDER BY change) FROM throng.history_cursors";
    assert_eq!(postgres.psql(changes), "a4,c5,d6,b7");
}
