//! A client of the admin API: an HTTP client, with JSON in and out.

use std::net::{SocketAddr, SocketAddrV4};

use admin::{Http, Url};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A client of the admin API.
#[derive(Debug)]
pub struct Api(Http);

impl Api {
    /// Returns a client that connects at its first request.
    pub fn new(address: SocketAddrV4) -> Self {
        let url = Url {
            host: address.to_string(),
            address: SocketAddr::V4(address),
            path: String::new(),
            is_tls: false,
        };
        Self(Http::new(&url, None, "throng-bench"))
    }

    /// Posts JSON and parses the JSON response.
    ///
    /// # Errors
    /// If no response comes, or it is anything but 2xx with JSON.
    pub fn post(&mut self, path: &str, body: &Value) -> Result<Value> {
        let (status, response) =
            self.0.request("POST", path, "application/json", &body.to_string())?;
        ensure!(
            (200..300).contains(&status),
            "POST {path} returned status {status}: {}",
            String::from_utf8_lossy(&response)
        );
        serde_json::from_slice(&response).with_context(|| format!("the response to POST {path}"))
    }

    /// Gets a text. Returns the status and the body.
    ///
    /// # Errors
    /// If no response comes, or it is not HTTP.
    pub fn get(&mut self, path: &str) -> Result<(u16, String)> {
        let (status, response) = self.0.request("GET", path, "text/plain", "")?;
        Ok((status, String::from_utf8_lossy(&response).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn the_error_of_a_rejected_request_has_its_body() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let SocketAddr::V4(address) = listener.local_addr().expect("an address") else {
            panic!("bound to IPv4");
        };
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = vec![0; 4096];
            let bytes = stream.read(&mut request).expect("a request");
            let response = b"HTTP/1.1 503 Full\r\ncontent-length: 4\r\n\r\nfull";
            stream.write_all(response).expect("a response");
            request.truncate(bytes);
            request
        });
        let error = Api::new(address).post("/x", &json!({"a": 1})).expect_err("503");
        assert!(error.to_string().contains("503: full"), "{error}");
        let request = server.join().expect("no panic");
        assert!(request.starts_with(b"POST /x HTTP/1.1\r\n") && request.ends_with(b"{\"a\":1}"));
    }
}
