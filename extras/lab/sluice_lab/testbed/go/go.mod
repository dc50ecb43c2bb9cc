// The modules whose own tests run in ./scripts/test-peers suites. Each is built with the versions of its own go.sum.
module sluice.example/peers

go 1.26

require (
	github.com/IBM/sarama v1.61.1
	github.com/twmb/franz-go v1.22.3
)
