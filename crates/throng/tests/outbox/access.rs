//! Rights in the database, and security of the connection.

use std::process::Command;

use super::*;

fn throng(arguments: &[&str], settings: &[(&str, &str)]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    output_within(command.args(arguments).envs(settings.iter().copied()).current_dir("/"))
}

/// Returns the SQL statements of the page for a database user that owns nothing.
fn grants() -> String {
    let page = include_str!("../../../../docs/outbox.md");
    let (_, grants) = page.split_once("<!-- the grants -->").expect("the grants");
    let (_, grants) = grants.split_once("```sql\n").unwrap();
    grants.split_once("```").unwrap().0.to_owned()
}

#[test]
fn a_user_without_rights_drains_what_another_one_has_made() {
    let postgres = Postgres::start();
    postgres.psql("CREATE ROLE throng LOGIN; CREATE ROLE app LOGIN");
    let url = postgres.url("throng");
    let server = Server::with(&["--shards", "1"], &[("THRONG_OUTBOX_URL", &*url)]);
    until_error(&server, "throng outbox migrate --print | psql");
    assert_eq!(state(&server)["connected"], false);
    let script = throng(&["outbox", "migrate", "--print"], &[]);
    assert!(script.status.success(), "{script:?}");
    postgres.psql(&String::from_utf8(script.stdout).unwrap());
    until_error(&server, "permission denied");
    postgres.psql(&grants());
    until_draining(&server);
    let mut member = stream(&server, "topic=t");
    postgres.psql_as("app", "SELECT throng.publish('t', '\"of the application\"')");
    postgres.psql_as("app", "SELECT throng.publish('@', '\"refused\"')");
    assert_eq!(next_data(&mut member), "of the application");
    postgres.until_empty();
    assert_eq!(postgres.psql("SELECT code FROM throng.outbox_refused"), "bad_topic");
    // The application's user can publish, and do nothing else.
    for sql in [
        "SELECT * FROM throng.outbox",
        "SELECT throng.outbox_insert('1')",
        "SELECT throng.outbox_retry(2)",
    ] {
        let output = postgres.try_psql("app", "app", sql);
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("permission denied"),
            "{output:?}"
        );
    }
}

#[test]
fn the_command_makes_the_schema_once_and_respects_a_newer_one() {
    let postgres = Postgres::start();
    let url = postgres.url("postgres");
    let settings = [("THRONG_OUTBOX_URL", &*url), ("THRONG_OUTBOX_SCHEMA", "user")];
    let migrate = || throng(&["outbox", "migrate"], &settings);
    let printed = |output: std::process::Output| {
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(printed(migrate()), "the schema \"user\" has version 1 now (it was 0)\n");
    assert_eq!(printed(migrate()), "the schema \"user\" already has version 1\n");
    postgres.psql("INSERT INTO \"user\".outbox_migrations (version) VALUES (99)");
    let output = migrate();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("version 99, and this program supports 1"), "{error}");
    let server = Server::with(&["--shards", "1"], &settings);
    until_error(&server, "start the newer program");
    let output = throng(&["outbox", "migrate"], &[]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_connection_by_tls_with_a_password_and_a_new_one_counts_after_sighup() {
    let authority = tls::Authority::new();
    let text = |name: &str| std::fs::read_to_string(authority.path(name)).unwrap();
    let port = tcp_port();
    let options = [
        "listen_addresses=127.0.0.1",
        &format!("port={port}"),
        "ssl=on",
        "ssl_cert_file=../server.pem",
        "ssl_key_file=../server.key",
        "hba_file=hba.conf",
    ];
    let postgres = Postgres::with(&options, |folder| {
        Postgres::add_file(folder, "server.pem", &text("server.pem"));
        Postgres::add_file(folder, "server.key", &text("server.key"));
        let rules = "local all all trust\nhostssl all all all scram-sha-256\n";
        Postgres::add_file(folder, "hba.conf", rules);
    });
    postgres.psql(
        "CREATE ROLE throng LOGIN PASSWORD 'the right password'; GRANT CREATE ON DATABASE app TO throng",
    );
    let scratch = Scratch::new("outbox");
    let password = scratch.path().join("password");
    write_secret(&password, "a wrong password\n");
    let ca = authority.path("ca.pem").display().to_string();
    let with = |query: &str, ca: Option<&str>| {
        let ca = ca.map(|ca| format!("ca_file = \"{ca}\"\n")).unwrap_or_default();
        let url = format!("postgres://throng@localhost:{port}/app?{query}");
        let file = format!("[outbox]\nurl = \"{url}\"\npassword_file = \"password\"\n{ca}");
        let file = scratch.write("throng.toml", &file).display().to_string();
        Server::with(&["--shards", "1", "--config", &file], &[])
    };
    let server = with("sslmode=verify-full", Some(&ca));
    until_error(&server, "password authentication failed");
    write_secret(&password, "the right password\n");
    server.signal("-HUP");
    until_draining(&server);
    let mut member = stream(&server, "topic=t");
    postgres.psql("SELECT throng.publish('t', '\"by TLS\"')");
    assert_eq!(next_data(&mut member), "by TLS");
    let is_secure = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'throng'";
    assert_eq!(postgres.psql(is_secure), "t");
    drop(server);
    // Without the certificate authority the server can't verify PostgreSQL.
    let server = with("sslmode=verify-full", None);
    until_error(&server, "TLS");
    drop(server);
    // With encryption, and without verification.
    until_draining(&with("sslmode=require", None));
    let server = with("sslmode=disable", None);
    until_error(&server, "no encryption");
}
