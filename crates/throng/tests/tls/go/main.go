// Listens to the topic news through TLS, and prints messages until the first one of the test arrives.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
)

func main() {
	address, authority := os.Args[1], os.Args[2]
	pem, err := os.ReadFile(authority)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	// The library offers HTTP/2, and uses the protocol that the server knows.
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	client := &http.Client{Transport: transport}
	response, err := client.Get("https://" + address + "/sse?topic=news")
	if err != nil {
		log.Fatal(err)
	}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		fmt.Println(lines.Text())
		if strings.Contains(lines.Text(), "hello") {
			return
		}
	}
	log.Fatal(lines.Err())
}
