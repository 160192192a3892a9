//! The flags that are settings.

use std::path::PathBuf;

use clap::Args;

/// The settings that have a flag. A flag wins over the file and the environment. Values stay texts
/// here, because the configuration checks them together with those of the file.
#[derive(Args, Clone, Default)]
pub struct Flags {
    /// Read the configuration from this file instead of ./throng.toml.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where clients connect, an address or name with a port [default: 127.0.0.1:8000].
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Where applications and operators connect, an address or name with a port [default: 127.0.0.1:8001].
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
    /// Where MQTT clients connect, an address or name with a port; without one 127.0.0.1:1883 [default: no
    /// MQTT].
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1:1883")]
    pub mqtt: Option<String>,
    /// Let clients connect from other machines although nothing authenticates them.
    #[arg(long)]
    pub insecure: bool,
    /// Number of event loops [default: as cores, connections and the limit on open files require].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub shards: Option<String>,
    /// Maximum number of connections [default: 100000].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub max_connections: Option<String>,
    /// How the server sends messages: io_uring batches where the kernel allows them, or one write
    /// for each connection [default: auto].
    #[arg(long, value_name = "auto|io_uring|write")]
    pub sender: Option<String>,
    /// Bind each shard to a core.
    #[arg(long)]
    pub pin_cpus: bool,
    /// Read the API key from this file.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Store history, cursors and subscriptions in this directory, where they survive the process
    /// [default: in memory only].
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
    /// Serve as one of several nodes, connected through this NATS server; separate several with
    /// commas [default: no cluster].
    #[arg(long, value_name = "URL")]
    pub cluster: Option<String>,
    /// What the server logs: error, warn, info, debug, trace, or a filter [default: info].
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// Format of the log: lines for people, or a JSON object a line [default: text].
    #[arg(long, value_name = "text|json")]
    pub log_format: Option<String>,
}
