package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"syscall"
)

// socketAppend publishes over a WebSocket: a row of messages at once, each of them acknowledged by one.
type socketAppend struct {
	order   *order
	frames  []byte
	pending []byte // An answer that has not come whole.
	answers int
}

// The handshake's key is any; nobody looks at what the server makes of it.
const handshake = "GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

const (
	finalText = 0x81
	masked    = 0x80
)

func newSocketAppend(wanted *order) *socketAppend {
	message := []byte(wanted.Request)
	frame := []byte{finalText, masked | 126}
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(message)))
	// A mask of zeros leaves the message as it is; to unmask it costs the server the same.
	frame = append(append(frame, 0, 0, 0, 0), message...)
	return &socketAppend{order: wanted, frames: bytes.Repeat(frame, wanted.Answers)}
}

func (s *socketAppend) greet(fd int) error {
	if _, err := syscall.Write(fd, []byte(handshake)); err != nil {
		return err
	}
	buffer, heard := make([]byte, 65536), []byte{}
	for !bytes.HasSuffix(heard, blankLine) {
		count, err := syscall.Read(fd, buffer)
		if err != nil {
			return err
		}
		if count == 0 {
			return fmt.Errorf("the server hung up after: %.300s", heard)
		}
		heard = append(heard, buffer[:count]...)
	}
	if !bytes.HasPrefix(heard, []byte("HTTP/1.1 101")) {
		return fmt.Errorf("the server answered: %.300s", heard)
	}
	return nil
}

func (s *socketAppend) next() []byte { return s.frames }

func (s *socketAppend) feed(data []byte) (int, bool, error) {
	if len(s.pending) > 0 {
		s.pending = append(s.pending, data...)
		data = s.pending
	}
	for {
		body, size := message(data)
		if size == 0 {
			s.pending = append(s.pending[:0], data...)
			return 0, false, nil
		}
		if data[0] == finalText {
			if !bytes.Contains(body, []byte(`"op":"ack"`)) {
				return 0, false, fmt.Errorf("the server said: %.300s", body)
			}
			s.answers++
		}
		data = data[size:]
		if s.answers == s.order.Answers {
			s.answers, s.pending = 0, append(s.pending[:0], data...)
			return s.order.Records, true, nil
		}
	}
}

// message gives the first frame's payload, and its size with the head; 0 while it is not whole.
func message(data []byte) ([]byte, int) {
	if len(data) < 4 {
		return nil, 0
	}
	length, head := int(data[1]), 2
	if length == 126 {
		length, head = int(binary.BigEndian.Uint16(data[2:])), 4
	}
	if len(data) < head+length {
		return nil, 0
	}
	return data[head : head+length], head + length
}
