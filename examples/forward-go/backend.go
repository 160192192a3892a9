// A back end that replies to clients' messages below requests/, with the standard library alone: it replies with
// prices, takes orders, and notifies the shop of them.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const bodyBytesMax = 16 << 20

// The number of remembered ids: a message may come again.
const seenMax = 100_000

var prices = map[string]int{"tea": 3, "cake": 4}

// A Message is a client's publish.
type Message struct {
	ID     string          `json:"id"`
	Topic  string          `json:"topic"`
	Data   json.RawMessage `json:"data"`
	User   *string         `json:"user"`
	Client string          `json:"client"`
}

// An Object is a JSON object: a message that the server publishes for the back end, or a part of one.
type Object map[string]any

// isSigned returns true if Throng has signed this body, at most five minutes before or after now.
func isSigned(key []byte, header http.Header, body []byte, now time.Time) bool {
	sent, err := strconv.ParseInt(header.Get("webhook-timestamp"), 10, 64)
	if err != nil || now.Sub(time.Unix(sent, 0)).Abs() > 5*time.Minute {
		return false
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.", header.Get("webhook-id"), sent)
	mac.Write(body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	// There may be several, with spaces between them.
	for _, given := range strings.Split(header.Get("webhook-signature"), " ") {
		if hmac.Equal([]byte(want), []byte(given)) {
			return true
		}
	}
	return false
}

// signingKey returns the bytes of webhook.signing_key. A key with the prefix whsec_ has them in base64 after it.
func signingKey(text string) ([]byte, error) {
	if encoded, found := strings.CutPrefix(text, "whsec_"); found {
		return base64.StdEncoding.DecodeString(encoded)
	}
	return []byte(text), nil
}

// handle returns the messages to publish for a client's message: the reply, and an order for the shop.
func handle(message Message) []Object {
	// Messages of MQTT clients are text; messages by WebSocket may be JSON.
	var item string
	_ = json.Unmarshal(message.Data, &item)
	price, known := prices[item]
	if !known {
		return []Object{{"reply_to": message.ID, "data": Object{"error": "there is tea and cake"}}}
	}
	if message.Topic == "requests/price" {
		return []Object{{"reply_to": message.ID, "data": Object{"item": item, "price": price}}}
	}
	// An order: the client gets a confirmation, and the shop gets the order.
	order := Object{"item": item, "from": message.User, "client": message.Client}
	return []Object{
		{"reply_to": message.ID, "data": Object{"ordered": item, "price": price}},
		{"topic": "orders", "data": order, "mqtt": Object{"qos": 1}},
	}
}

// Seen has the replies to recent messages: a repeated message gets the same ones.
type Seen struct {
	sync.Mutex
	replies map[string][]Object
	order   []string
}

func (seen *Seen) handle(message Message) []Object {
	seen.Lock()
	defer seen.Unlock()
	if replies, known := seen.replies[message.ID]; known {
		return replies
	}
	replies := handle(message)
	seen.replies[message.ID] = replies
	seen.order = append(seen.order, message.ID)
	if len(seen.order) > seenMax {
		delete(seen.replies, seen.order[0])
		seen.order = seen.order[1:]
	}
	return replies
}

func main() {
	text := os.Getenv("SIGNING_KEY")
	if text == "" {
		text = "a key for examples, which others know"
	}
	key, err := signingKey(text)
	if err != nil {
		log.Fatal("SIGNING_KEY: ", err)
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "9000"
	}
	seen := &Seen{replies: map[string][]Object{}}
	respond := func(w http.ResponseWriter, status int, value any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(value)
	}
	handler := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytesMax))
		if err != nil {
			respond(w, http.StatusRequestEntityTooLarge, Object{"error": "too large"})
			return
		}
		if !isSigned(key, r.Header, body, time.Now()) {
			respond(w, http.StatusUnauthorized, Object{"error": "the signature is wrong"})
			return
		}
		var request struct {
			Messages []Message `json:"messages"`
		}
		if err := json.Unmarshal(body, &request); err != nil {
			respond(w, http.StatusBadRequest, Object{"error": err.Error()})
			return
		}
		messages := []Object{}
		for _, message := range request.Messages {
			messages = append(messages, seen.handle(message)...)
		}
		respond(w, http.StatusOK, Object{"messages": messages})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s/requests\n", listener.Addr())
	log.Fatal(http.Serve(listener, http.HandlerFunc(handler)))
}
