module tls-go

go 1.24
