//! Tests against another server: nginx with Nchan, as packaged by Debian.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::flooding::{all_at_once, flood};
use crate::support::{Scratch, TIMEOUT, free_port};

const MODULE: &str = "/usr/lib/nginx/modules/ngx_nchan_module.so";
const HINT: &str = "scripts/test installs the Debian packages nginx and libnginx-mod-nchan";

/// The configuration. It uses one process, without children that could outlive the test. The buffer
/// holds all messages of a run, so that a slow reader misses none. New subscribers get only later
/// messages.
const CONFIGURATION: &str = "
load_module MODULE;
daemon off;
master_process off;
pid nginx.pid;
error_log error.log;
events { worker_connections 2048; }
http {
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  nchan_message_buffer_length 10000;
  nchan_message_timeout 1h;
  server {
    listen ADDRESS;
    keepalive_requests 1000000;
    nchan_channel_id $arg_topic;
    location = /pub { nchan_publisher http; }
    location = /sse {
      nchan_subscriber eventsource;
      nchan_subscriber_first_message newest;
      nchan_eventsource_ping_interval 1;
    }
    location = /stream {
      nchan_subscriber http-raw-stream;
      nchan_subscriber_first_message newest;
    }
    location = /ws {
      nchan_subscriber websocket;
      nchan_subscriber_first_message newest;
      nchan_websocket_ping_interval 1;
    }
  }
}
";

/// A running nginx; killed at the end of the test.
struct Nginx {
    child: Child,
    folder: Scratch,
    address: SocketAddr,
}

impl Nginx {
    fn start() -> Self {
        assert!(Path::new(MODULE).exists(), "{MODULE} is missing: {HINT}");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let folder = Scratch::new("nginx");
        let text = CONFIGURATION.replace("MODULE", MODULE).replace("ADDRESS", &address.to_string());
        folder.write("nginx.conf", &text);
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).args(["-c", "nginx.conf", "-e", "error.log"]);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("nginx: {error}: {HINT}"));
        let mut nginx = Nginx { child, folder, address };
        let end = Instant::now() + TIMEOUT;
        while TcpStream::connect(address).is_err() {
            let ended = nginx.child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < end, "{ended:?}: {}", nginx.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        nginx
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn nchan_delivers_each_message_once() {
    let nginx = Nginx::start();
    let address = nginx.address;
    all_at_once(&[("sse", true), ("stream", false), ("ws", true)], |(transport, beats)| {
        let end = flood(&format!(
            "one-topic http://{address}/{transport}?topic={{topic}} -t {transport} -c 200 \
             --publish http://{address}/pub?topic={{topic}} --topic-template all-{transport} \
             --messages 20 --hold 3"
        ));
        end.is_clean(200).delivered_to(200);
        assert_eq!(end.count("heartbeats") > 0, *beats, "{:#}", end.summary);
    });
    assert!(!nginx.log().contains("[alert]"), "{}", nginx.log());
}
