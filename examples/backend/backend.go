// A back end for Throng, with the standard library alone: it names the users of connections, admits users to
// documents, moderates chats, takes orders, and tracks who is online.
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
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

const bodyBytesMax = 1 << 20

var sessionSeconds = 3600
var sessions = map[string]string{"session-of-alice": "alice", "session-of-bob": "bob", "session-of-eve": "eve"}
var members = map[string]map[string]bool{"doc:7": {"alice": true, "bob": true}}
var prices = map[string]int{"tea": 3, "cake": 4}

// An Event is a webhook event of Throng, which may request a decision.
type Event struct {
	Kind       string              `json:"kind"`
	ID         string              `json:"id"`
	Topic      string              `json:"topic"`
	User       string              `json:"user"`
	Connection string              `json:"connection"`
	Payload    json.RawMessage     `json:"payload"`
	Query      map[string][]string `json:"query"`
	Headers    map[string]string   `json:"headers"`
}

// A Reply is the decision on one event.
type Reply map[string]any

func ok(more Reply) Reply {
	reply := Reply{"status": "ok"}
	for key, value := range more {
		reply[key] = value
	}
	return reply
}

func refuse(code, message string) Reply {
	return Reply{"status": "error", "response": Reply{"code": code, "message": message}}
}

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

// sessionUser returns the user of a connection's session: from a cookie, or, to try it, from the URL.
func sessionUser(event Event) (string, bool) {
	request := http.Request{Header: http.Header{"Cookie": {event.Headers["cookie"]}}}
	if cookie, err := request.Cookie("session"); err == nil {
		user, known := sessions[cookie.Value]
		return user, known
	}
	for _, session := range event.Query["session"] {
		user, known := sessions[session]
		return user, known
	}
	return "", false
}

func title(name string) string {
	return strings.ToUpper(name[:1]) + name[1:]
}

// decide returns the reply to an event that requests a decision.
func decide(event Event) Reply {
	switch event.Kind {
	case "connect":
		user, known := sessionUser(event)
		if !known {
			return refuse("unauthorized", "sign in first")
		}
		return ok(Reply{"user": user, "info": Reply{"name": title(user)}, "expires": sessionSeconds})
	case "refresh":
		for _, user := range sessions {
			if user == event.User {
				return ok(Reply{"expires": sessionSeconds})
			}
		}
		return refuse("signed_out", "the session is over")
	case "subscribe":
		if members[event.Topic][event.User] {
			return ok(Reply{"meta": Reply{"name": title(event.User)}})
		}
		return refuse("members_only", "ask the owner of the document")
	case "publish":
		var text string
		_ = json.Unmarshal(event.Payload, &text)
		switch {
		case strings.Contains(text, "spam"):
			return refuse("no_spam", "this is no place for advertising")
		case strings.Contains(text, "damn"):
			return ok(Reply{"payload": strings.ReplaceAll(text, "damn", "d***")})
		}
		return ok(nil)
	case "message":
		var order struct {
			Item string `json:"item"`
		}
		_ = json.Unmarshal(event.Payload, &order)
		if price, known := prices[order.Item]; known {
			return ok(Reply{"response": Reply{"ordered": order.Item, "price": price}})
		}
		return refuse("unknown_item", "there is tea and cake")
	}
	return refuse("unknown", "this back end does not know what that is")
}

// Online has the connected users, by Throng's events. Events come at least once, with ascending ids.
type Online struct {
	sync.Mutex
	lastID      uint64
	connections map[string]string
	topics      map[string]bool
}

// onEvent applies an event, and returns false if it requests a decision instead.
func (online *Online) onEvent(event Event) bool {
	switch event.Kind {
	case "started", "connected", "disconnected", "joined", "left", "occupied", "vacated":
	default:
		return false
	}
	online.Lock()
	defer online.Unlock()
	id, err := strconv.ParseUint(event.ID, 10, 64)
	if err != nil || id <= online.lastID {
		return true
	}
	online.lastID = id
	switch event.Kind {
	case "started":
		// The node has started: earlier connections are gone.
		online.connections, online.topics = map[string]string{}, map[string]bool{}
	case "connected":
		online.connections[event.Connection] = event.User
	case "disconnected":
		delete(online.connections, event.Connection)
	case "occupied":
		online.topics[event.Topic] = true
	case "vacated":
		delete(online.topics, event.Topic)
	}
	return true
}

func (online *Online) shown() Reply {
	online.Lock()
	defer online.Unlock()
	seen := map[string]bool{}
	for _, user := range online.connections {
		if user != "" {
			seen[user] = true
		}
	}
	return Reply{"users": sorted(seen), "topics": sorted(online.topics)}
}

func sorted(set map[string]bool) []string {
	names := []string{}
	for name := range set {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
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
	if text := os.Getenv("SESSION_SECONDS"); text != "" {
		if sessionSeconds, err = strconv.Atoi(text); err != nil {
			log.Fatal("SESSION_SECONDS: ", err)
		}
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "9000"
	}
	online := &Online{connections: map[string]string{}, topics: map[string]bool{}}
	respond := func(w http.ResponseWriter, status int, value any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(value)
	}
	handler := func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			respond(w, http.StatusOK, online.shown())
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytesMax))
		if err != nil {
			respond(w, http.StatusRequestEntityTooLarge, Reply{})
			return
		}
		if !isSigned(key, r.Header, body, time.Now()) {
			respond(w, http.StatusUnauthorized, Reply{"error": "the signature is wrong"})
			return
		}
		var request struct {
			Events []Event `json:"events"`
		}
		if err := json.Unmarshal(body, &request); err != nil {
			respond(w, http.StatusBadRequest, Reply{"error": err.Error()})
			return
		}
		// Events that request a decision need one reply each, in order. Others need none.
		replies := make([]Reply, 0, len(request.Events))
		for _, event := range request.Events {
			if online.onEvent(event) {
				replies = append(replies, ok(nil))
			} else {
				replies = append(replies, decide(event))
			}
		}
		respond(w, http.StatusOK, Reply{"replies": replies})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s/throng\n", listener.Addr())
	log.Fatal(http.Serve(listener, http.HandlerFunc(handler)))
}
