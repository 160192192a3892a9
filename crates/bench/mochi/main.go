// Mochi as a broker for the benchmark, without access control.
package main

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
)

func main() {
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	server := mqtt.New(&mqtt.Options{Logger: quiet})
	fail(server.AddHook(new(auth.AllowHook), nil))
	fail(server.AddListener(listeners.NewTCP(listeners.Config{ID: "tcp", Address: os.Args[1]})))
	fail(server.Serve())
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
}

func fail(err error) {
	if err != nil {
		panic(err)
	}
}
