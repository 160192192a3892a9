// Eclipse's clients in Go: version 3.1.1 by paho.mqtt.golang, version 5 by paho.golang; each by TCP and by WebSocket.
// Arguments: host and port, and the URL of the WebSocket.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/paho"
	mqtt "github.com/eclipse/paho.mqtt.golang"
)

func check(what string, err error) {
	if err != nil {
		fmt.Println(what, err)
		os.Exit(1)
	}
}

func must(what string, is bool) {
	if !is {
		fmt.Println("not so:", what)
		os.Exit(1)
	}
}

func done(what string, token mqtt.Token) {
	must(what+" in time", token.WaitTimeout(timeout))
	check(what, token.Error())
}

// A step of a conversation fails when it waits longer than this.
const timeout = 60 * time.Second

// Returns when the connection has ended. With a short time Disconnect would return earlier, and the old connection
// could still take a message.
func leave(client mqtt.Client) {
	client.Disconnect(uint(timeout.Milliseconds()))
}

type heard struct {
	topic, payload string
	qos            byte
	retained       bool
}

func three(broker, name string) {
	open := func(id string, kept bool) (mqtt.Client, chan heard) {
		messages := make(chan heard, 100)
		options := mqtt.NewClientOptions().AddBroker(broker).SetClientID(id).SetCleanSession(!kept).
			SetUsername("alice").SetPassword("any").SetAutoReconnect(false)
		options.SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) {
			messages <- heard{m.Topic(), string(m.Payload()), m.Qos(), m.Retained()}
		})
		client := mqtt.NewClient(options)
		done("connect", client.Connect())
		return client, messages
	}
	next := func(messages chan heard) heard {
		select {
		case message := <-messages:
			return message
		case <-time.After(timeout):
			check("a message", fmt.Errorf("none came"))
			return heard{}
		}
	}
	one, messages := open(name, false)
	done("subscribe", one.Subscribe("room/+", 2, nil))
	for qos := byte(0); qos < 3; qos++ {
		payload := fmt.Sprint("qos ", qos)
		done("publish", one.Publish("room/a", qos, false, payload))
		want := heard{"room/a", payload, qos, false}
		got := next(messages)
		must(fmt.Sprint(got, want), got == want)
	}
	done("publish", one.Publish("state/x", 1, true, "kept"))
	done("subscribe", one.Subscribe("state/#", 1, nil))
	must("it is retained", next(messages) == heard{"state/x", "kept", 1, true})
	done("publish", one.Publish("state/x", 1, true, ""))
	next(messages)
	two, _ := open(name+"-kept", true)
	// Each conversation has its own topic, since sessions of other conversations retain messages of their topics.
	away := "away/" + name
	done("subscribe", two.Subscribe(away+"/#", 1, nil))
	leave(two)
	for at := 0; at < 20; at++ {
		done("publish", one.Publish(away+"/a", 1, false, fmt.Sprint(at)))
	}
	two, missed := open(name+"-kept", true)
	for at := 0; at < 20; at++ {
		got := next(missed)
		must(fmt.Sprint(at, got), got.payload == fmt.Sprint(at))
	}
	leave(two)
	leave(one)
}

// Connects by TCP, or by WebSocket if the address is a URL.
func dial(at string) net.Conn {
	if strings.HasPrefix(at, "ws:") {
		socket, err := mqtt.NewWebsocket(at, nil, timeout, nil, nil)
		check("dial", err)
		return socket
	}
	socket, err := net.Dial("tcp", at)
	check("dial", err)
	return socket
}

func five(at, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	next := func(messages chan *paho.Publish) *paho.Publish {
		select {
		case message := <-messages:
			return message
		case <-ctx.Done():
			check("a message", ctx.Err())
			return nil
		}
	}
	open := func(id string, will *paho.WillMessage) (*paho.Client, chan *paho.Publish, *paho.Connack) {
		socket := dial(at)
		messages := make(chan *paho.Publish, 100)
		client := paho.NewClient(paho.ClientConfig{
			Conn:          socket,
			PacketTimeout: timeout,
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){
				func(received paho.PublishReceived) (bool, error) {
					messages <- received.Packet
					return true, nil
				},
			},
		})
		expiry := uint32(100)
		answer, err := client.Connect(ctx, &paho.Connect{
			ClientID: id, KeepAlive: 30, CleanStart: false, UsernameFlag: true, Username: "alice",
			Properties:  &paho.ConnectProperties{SessionExpiryInterval: &expiry},
			WillMessage: will,
			// This client sends only the user properties of a will's properties.
			WillProperties: &paho.WillProperties{User: paho.UserProperties{{Key: "a", Value: "1"}}},
		})
		check("connect", err)
		return client, messages, answer
	}
	one, messages, answer := open(name, nil)
	must("it is a new session", !answer.SessionPresent)
	granted, err := one.Subscribe(ctx, &paho.Subscribe{
		Subscriptions: []paho.SubscribeOptions{{Topic: name + "/+", QoS: 2}},
	})
	check("subscribe", err)
	must("QoS 2 is granted", granted.Reasons[0] == 2)
	for qos := byte(0); qos < 3; qos++ {
		_, err := one.Publish(ctx, &paho.Publish{
			Topic: name + "/a", QoS: qos, Payload: []byte(fmt.Sprint("qos ", qos)),
			Properties: &paho.PublishProperties{
				ContentType: "text/plain", ResponseTopic: "answers/1", CorrelationData: []byte{1},
				User: paho.UserProperties{{Key: "a", Value: "1"}},
			},
		})
		check("publish", err)
		got := next(messages)
		must("the message comes", string(got.Payload) == fmt.Sprint("qos ", qos) && got.QoS == qos)
		must("what is said of it comes", got.Properties.ContentType == "text/plain" &&
			got.Properties.ResponseTopic == "answers/1" && got.Properties.User.Get("a") == "1")
	}
	check("disconnect", one.Disconnect(&paho.Disconnect{ReasonCode: 0}))
	other, _, _ := open(name+"-other", nil)
	for at := 0; at < 5; at++ {
		_, err := other.Publish(ctx, &paho.Publish{Topic: name + "/b", QoS: 1, Payload: []byte(fmt.Sprint(at))})
		check("publish", err)
	}
	one, messages, answer = open(name, nil)
	must("the session goes on", answer.SessionPresent)
	for at := 0; at < 5; at++ {
		got := next(messages)
		must("what came meanwhile", string(got.Payload) == fmt.Sprint(at))
	}
	// The client disconnects with the code that still publishes its will.
	will := &paho.WillMessage{Topic: name + "/will", Payload: []byte("gone"), QoS: 1}
	dying, _, _ := open(name+"-dying", will)
	check("disconnect", dying.Disconnect(&paho.Disconnect{ReasonCode: 4}))
	got := next(messages)
	must("the will comes", string(got.Payload) == "gone" && got.QoS == 1 && got.Topic == name+"/will")
	must("what is said of it comes", got.Properties.User.Get("a") == "1")
	check("disconnect", one.Disconnect(&paho.Disconnect{ReasonCode: 0}))
	check("disconnect", other.Disconnect(&paho.Disconnect{ReasonCode: 0}))
}

func main() {
	at, socket := os.Args[1], os.Args[2]
	three("tcp://"+at, "paho-go-tcp")
	three(socket, "paho-go-ws")
	five(at, "paho-go-5-tcp")
	five(socket, "paho-go-5-ws")
	fmt.Println("ok")
}
