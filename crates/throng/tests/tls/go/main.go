// Listens to the topic news through TLS, and prints what comes until the first message is there.
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
	// The library would speak HTTP/2, and goes on with what the server knows.
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
