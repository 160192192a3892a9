// Publishes a message: go run publish.go TOPIC TEXT
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"
)

var client = &http.Client{Timeout: 10 * time.Second}

func publish(api, key, topic string, data any) (string, error) {
	body, err := json.Marshal(map[string]any{"topic": topic, "data": data})
	if err != nil {
		return "", err
	}
	request, err := http.NewRequest("POST", api+"/api/publish", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+key)
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("publish: %s", response.Status)
	}
	var published struct{ ID string }
	err = json.NewDecoder(response.Body).Decode(&published)
	return published.ID, err
}

func main() {
	api := os.Getenv("THRONG_API")
	if api == "" {
		api = "http://127.0.0.1:8001"
	}
	id, err := publish(api, os.Getenv("THRONG_API_KEY"), os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(id)
}
