// Producers of Sarama with numbered records of one size, each in a request of its own, one producer to a partition;
// extras/lab/sluice_lab/scenarios/closed_loop/producers.py starts it. A line is "ok EPOCH_MS TOOK_MS" for a
// record that was acknowledged, "error TEXT" for one that failed, and "closed" for a connection that somebody else closed.
// All else is as the library has it, which has one request in flight where it is idempotent.
package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

type watched struct {
	net.Conn
	isClosed atomic.Bool
}

func (connection *watched) Read(into []byte) (int, error) {
	count, err := connection.Conn.Read(into)
	if err != nil && !connection.isClosed.Swap(true) {
		fmt.Println("closed")
	}
	return count, err
}

func (connection *watched) Close() error {
	connection.isClosed.Store(true)
	return connection.Conn.Close()
}

type dialer struct{}

func (dialer) Dial(network, address string) (net.Conn, error) {
	connection, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return &watched{Conn: connection}, nil
}

func number(position int) int {
	parsed, err := strconv.Atoi(os.Args[position])
	if err != nil {
		panic(err)
	}
	return parsed
}

func produce(client string, servers []string, topic string, partition int32, bytes int) {
	config := sarama.NewConfig()
	config.ClientID = client
	config.Version = sarama.MaxVersion
	config.Net.MaxOpenRequests = 1
	config.Net.Proxy.Enable, config.Net.Proxy.Dialer = true, dialer{}
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Producer.Flush.MaxMessages = 1
	config.Producer.MaxMessageBytes = max(1<<20, bytes+1_000)
	producer, err := sarama.NewSyncProducer(servers, config)
	for ; err != nil; producer, err = sarama.NewSyncProducer(servers, config) {
		fmt.Println("error", strings.ReplaceAll(err.Error(), "\n", " "))
		time.Sleep(time.Second)
	}
	for number := uint64(0); ; number++ {
		value := make([]byte, bytes)
		binary.BigEndian.PutUint64(value, number)
		sent := time.Now()
		_, _, err := producer.SendMessage(
			&sarama.ProducerMessage{Topic: topic, Partition: partition, Value: sarama.ByteEncoder(value)})
		if err != nil {
			fmt.Println("error", strings.ReplaceAll(err.Error(), "\n", " "))
			continue
		}
		fmt.Println("ok", time.Now().UnixMilli(), time.Since(sent).Milliseconds())
	}
}

// Arguments: client-id, servers, topic, first partition, number of producers, bytes of a record.
func main() {
	servers := strings.Split(os.Args[2], ",")
	for index := range number(5) {
		go produce(os.Args[1], servers, os.Args[3], int32(number(4)+index), number(6))
	}
	select {}
}
