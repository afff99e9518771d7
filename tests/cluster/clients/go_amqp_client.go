// go-amqp: one host is dialled after the other; a broken connection is dialled again.
//
//	GO111MODULE=off go run go_amqp_client.go publish 5672,5673 QUEUE
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	amqp "github.com/Azure/go-amqp"
)

var (
	ctx    = context.Background()
	enough atomic.Bool
	next   int
)

// dial returns a session with whoever of the list leads.
func dial(ports []string) (*amqp.Conn, *amqp.Session) {
	for attempt := 0; ; attempt++ {
		address := "amqp://127.0.0.1:" + ports[attempt%len(ports)]
		options := &amqp.ConnOptions{SASLType: amqp.SASLTypePlain("guest", "guest")}
		if connection, err := amqp.Dial(ctx, address, options); err == nil {
			if session, err := connection.NewSession(ctx, nil); err == nil {
				return connection, session
			}
			connection.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func publish(session *amqp.Session, address string) error {
	sender, err := session.NewSender(ctx, address, nil)
	for err == nil && !enough.Load() {
		message := amqp.NewMessage([]byte(strconv.Itoa(next)))
		message.Header = &amqp.MessageHeader{Durable: true}
		if err = sender.Send(ctx, message, nil); err == nil { // it was accepted
			fmt.Println("confirmed", next)
			next++
		}
	}
	return err
}

func consume(session *amqp.Session, address string) error {
	receiver, err := session.NewReceiver(ctx, address, nil)
	for err == nil {
		var message *amqp.Message
		if message, err = receiver.Receive(ctx, nil); err == nil {
			fmt.Println("received", string(message.GetData()))
			err = receiver.AcceptMessage(ctx, message)
		}
	}
	return err
}

func main() {
	role, ports, address := os.Args[1], strings.Split(os.Args[2], ","), "/queues/"+os.Args[3]
	go func() {
		io.Copy(io.Discard, os.Stdin)
		enough.Store(true)
	}()
	for !enough.Load() {
		connection, session := dial(ports)
		if role == "publish" {
			publish(session, address)
		} else {
			consume(session, address)
		}
		connection.Close()
	}
}
