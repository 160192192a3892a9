# The configuration of the image: https://github.com/opencontainers/image-spec/blob/main/config.md
# Healthcheck is Docker's own; Kubernetes and compose name theirs (ops/helm, ops/compose.yml).
{
  created: $created,
  architecture: $machine,
  os: "linux",
  config: {
    User: "65532:65532",
    ExposedPorts: {"8000/tcp": {}, "8001/tcp": {}, "1883/tcp": {}},
    # In a container loopback is the container's own. Without a key, and without tokens or client.insecure, the server
    # refuses to listen elsewhere, and says what to do.
    Env: ["PATH=/usr/bin", "THRONG_CLIENT_LISTEN=0.0.0.0:8000", "THRONG_ADMIN_LISTEN=0.0.0.0:8001"],
    Entrypoint: ["/usr/bin/throng"],
    Cmd: ["serve"],
    Volumes: {"/var/lib/throng": {}},
    # throng.toml is read from here, if it is there.
    WorkingDir: "/etc/throng",
    StopSignal: "SIGTERM",
    Labels: {
      "org.opencontainers.image.title": "Throng",
      "org.opencontainers.image.description": "Push server for millions of live connections",
      "org.opencontainers.image.version": $version,
      "org.opencontainers.image.revision": $revision,
      "org.opencontainers.image.created": $created,
      "org.opencontainers.image.licenses": "Apache-2.0"
    },
    Healthcheck: {
      Test: ["CMD", "/usr/bin/throng", "health"],
      Interval: 10000000000,
      Timeout: 5000000000,
      StartPeriod: 5000000000,
      Retries: 3
    }
  },
  rootfs: {type: "layers", diff_ids: [$content]},
  history: [{created: $created, created_by: "scripts/release image"}]
}
