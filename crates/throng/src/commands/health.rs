//! `throng health`: reports whether a node lives and takes new connections.

use std::io::{Write, stdout};

use admin::{Admin, refusal};

use crate::cli::Health;
use crate::error::CommandError;

/// The `User-Agent` of the requests.
const AGENT: &str = "throng-health";

/// Runs the command. Its error decides the exit status.
pub fn run(args: &Health) -> Result<(), CommandError> {
    let mut admin = Admin::new(&args.access.target(&args.admin)?, AGENT);
    let path = if args.live { "/healthz" } else { "/readyz" };
    let reply = admin.exchange("GET", path, "text/plain", "");
    let (status, body) = reply.map_err(|error| CommandError::Runtime(error.to_string()))?;
    let (text, result) = match status {
        200 => ("ok".to_owned(), Ok(())),
        503 => (refusal(status, &body), Err(CommandError::Findings)),
        _ => return Err(CommandError::Runtime(admin.error_of(path, status, &body).to_string())),
    };
    // A closed pipe is not an error.
    let _ = writeln!(stdout(), "{text}");
    result
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Checks a node that sends this status and body, and returns the path of the request too.
    fn check(live: bool, status: &str, body: &str) -> (String, Result<(), CommandError>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = listener.local_addr().unwrap().to_string();
        let reply = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let node = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(reply.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let result = run(&Health { admin, access: Default::default(), live });
        let request = node.join().unwrap();
        (request.split(' ').nth(1).unwrap().to_owned(), result)
    }

    #[test]
    fn the_status_of_the_node_is_the_exit_status() {
        let (path, result) = check(false, "200 OK", r#"{"status":"ok"}"#);
        assert!(path == "/readyz" && result.is_ok());
        let (path, result) = check(true, "200 OK", r#"{"status":"ok"}"#);
        assert!(path == "/healthz" && result.is_ok());
        let body = r#"{"error":{"code":"memory_full","message":"later"}}"#;
        let (_, result) = check(false, "503 Service Unavailable", body);
        assert!(matches!(result, Err(CommandError::Findings)));
        let (_, result) = check(false, "404 Not Found", "");
        assert!(matches!(result, Err(CommandError::Runtime(text)) if text.contains("right port")));
    }

    #[test]
    fn a_port_without_a_node_is_an_error() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let admin = format!("127.0.0.1:{port}");
        let result = run(&Health { admin, access: Default::default(), live: false });
        assert!(matches!(result, Err(CommandError::Runtime(text)) if text.contains("can't reach")));
    }
}
