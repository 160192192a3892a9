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

// An Answer is a message that the server publishes for the back end.
type Answer map[string]any

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
func handle(message Message) []Answer {
	// Messages of MQTT clients are text; messages by WebSocket may be JSON.
	var item string
	_ = json.Unmarshal(message.Data, &item)
	price, known := prices[item]
	if !known {
		return []Answer{{"reply_to": message.ID, "data": Answer{"error": "there is tea and cake"}}}
	}
	if message.Topic == "requests/price" {
		return []Answer{{"reply_to": message.ID, "data": Answer{"item": item, "price": price}}}
	}
	// An order: the client gets a confirmation, and the shop gets the order.
	order := Answer{"item": item, "from": message.User, "client": message.Client}
	return []Answer{
		{"reply_to": message.ID, "data": Answer{"ordered": item, "price": price}},
		{"topic": "orders", "data": order, "mqtt": Answer{"qos": 1}},
	}
}

// Seen has the replies to recent messages: a repeated message gets the same ones.
type Seen struct {
	sync.Mutex
	answers map[string][]Answer
	order   []string
}

func (seen *Seen) handle(message Message) []Answer {
	seen.Lock()
	defer seen.Unlock()
	if had, known := seen.answers[message.ID]; known {
		return had
	}
	answers := handle(message)
	seen.answers[message.ID] = answers
	seen.order = append(seen.order, message.ID)
	if len(seen.order) > seenMax {
		delete(seen.answers, seen.order[0])
		seen.order = seen.order[1:]
	}
	return answers
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
	seen := &Seen{answers: map[string][]Answer{}}
	answer := func(w http.ResponseWriter, status int, value any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(value)
	}
	handler := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytesMax))
		if err != nil {
			answer(w, http.StatusRequestEntityTooLarge, Answer{"error": "too large"})
			return
		}
		if !isSigned(key, r.Header, body, time.Now()) {
			answer(w, http.StatusUnauthorized, Answer{"error": "the signature is wrong"})
			return
		}
		var request struct {
			Messages []Message `json:"messages"`
		}
		if err := json.Unmarshal(body, &request); err != nil {
			answer(w, http.StatusBadRequest, Answer{"error": err.Error()})
			return
		}
		answers := []Answer{}
		for _, message := range request.Messages {
			answers = append(answers, seen.handle(message)...)
		}
		answer(w, http.StatusOK, Answer{"messages": answers})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s/requests\n", listener.Addr())
	log.Fatal(http.Serve(listener, http.HandlerFunc(handler)))
}
