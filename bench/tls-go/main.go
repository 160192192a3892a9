// A simple event server in Go for comparison in bench/tls: net/http, with a goroutine and a channel for each
// connection.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"sync"
)

var (
	lock    sync.RWMutex
	members = map[chan []byte]struct{}{}
)

func subscribe(w http.ResponseWriter, r *http.Request) {
	messages := make(chan []byte, 16)
	lock.Lock()
	members[messages] = struct{}{}
	lock.Unlock()
	defer func() {
		lock.Lock()
		delete(members, messages)
		lock.Unlock()
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(200)
	flusher := w.(http.Flusher)
	flusher.Flush()
	for {
		select {
		case message := <-messages:
			if _, err := w.Write(message); err != nil {
				return
			}
			flusher.Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func publish(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	message := []byte(fmt.Sprintf("data: %s\n\n", body))
	lock.RLock()
	for messages := range members {
		select {
		case messages <- message:
		default:
		}
	}
	lock.RUnlock()
}

func main() {
	http.HandleFunc("/sub", subscribe)
	http.HandleFunc("/pub", publish)
	http.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	// Only HTTP/1.1, as Throng and nginx.
	server := &http.Server{Addr: os.Args[2], TLSNextProto: nil}
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	go func() { log.Fatal(server.ListenAndServeTLS("cert.pem", "key.pem")) }()
	log.Fatal(http.ListenAndServe(os.Args[1], nil))
}
