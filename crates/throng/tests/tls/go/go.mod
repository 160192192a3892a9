module throng/tests/tls

go 1.21
