# Throng as a job of Nomad, in a container: nomad job run -var image=REGISTRY/throng:0.2.0 ops/nomad/throng.nomad.hcl
# The keys are in Nomad's variables: nomad var put nomad/jobs/throng api_key=… hmac_key=…

variable "image" {
  type    = string
  default = "throng:0.2.0"
}

job "throng" {
  type = "service"

  # One node: several share no history and no presence.
  group "throng" {
    count = 1

    network {
      port "clients" {
        static = 8000
        to     = 8000
      }
      port "admin" {
        to = 8001
      }
    }

    # Moves with the job, if the scheduler can.
    ephemeral_disk {
      size    = 2000
      sticky  = true
      migrate = true
    }

    service {
      name     = "throng"
      port     = "clients"
      provider = "nomad"
    }

    service {
      name     = "throng-admin"
      port     = "admin"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/readyz"
        interval = "5s"
        timeout  = "2s"
      }
    }

    task "throng" {
      driver = "docker"

      # SIGTERM: clients learn that they are to come back. Longer than timeouts.drain_seconds.
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"
      # Proxies forget the address first.
      shutdown_delay = "5s"

      config {
        image           = var.image
        ports           = ["clients", "admin"]
        readonly_rootfs = true
        cap_drop        = ["all"]
        ulimit {
          nofile = "1048576:1048576"
        }
      }

      template {
        destination = "${NOMAD_SECRETS_DIR}/keys.env"
        env         = true
        data        = <<-EOT
          {{ with nomadVar "nomad/jobs/throng" }}
          THRONG_ADMIN_API_KEY={{ .api_key }}
          THRONG_AUTH_HMAC_KEY={{ .hmac_key }}
          {{ end }}
        EOT
      }

      env {
        THRONG_AUTH_REQUIRED = "true"
        THRONG_STORE_DATA    = "${NOMAD_ALLOC_DIR}/data/throng"
      }

      resources {
        cpu    = 1000
        memory = 1024
      }
    }
  }
}
