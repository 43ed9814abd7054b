package main

import (
	"bytes"
	"fmt"
	"strconv"
)

// httpAnswer takes an HTTP/1.1 answer apart as it arrives, with a length or in chunks, and keeps none of it but the
// header fields and the two ends of the body, where cursors stand.
type httpAnswer struct {
	state   int
	head    []byte // The header so far, when it did not arrive at once.
	left    int    // Bytes to come of the body or the chunk.
	line    []byte // A chunk's size line so far.
	chunked bool

	upToDate bool
	offset   []byte // Stream-Next-Offset
	count    int    // Markers in the body.
	rest     []byte // What came behind the end of an answer with a length.
	front    []byte
	back     []byte
}

const (
	inHeader = iota
	inBody
	inSize
	inChunk
	inChunkEnd
	inTrailer
)

const endBytes = 512

var blankLine = []byte("\r\n\r\n")

func (a *httpAnswer) feed(data []byte) (records int, done bool, err error) {
	if a.state == inHeader {
		if data, err = a.feedHeader(data); err != nil || a.state == inHeader {
			return 0, false, err
		}
	}
	before := a.count
	if a.chunked {
		done, err = a.feedChunks(data)
	} else {
		part := data
		if len(part) > a.left {
			part = part[:a.left]
		}
		a.body(part)
		a.left -= len(part)
		a.rest, done = data[len(part):], a.left == 0
	}
	if done {
		a.state = inHeader
	}
	return a.count - before, done, err
}

// feedHeader gives back the part of the data that belongs to the body.
func (a *httpAnswer) feedHeader(data []byte) ([]byte, error) {
	if len(a.head) > 0 {
		a.head = append(a.head, data...)
		data = a.head
	}
	end := bytes.Index(data, blankLine)
	if end < 0 {
		if len(a.head) == 0 {
			a.head = append(a.head, data...)
		}
		return nil, nil
	}
	header, rest := data[:end], data[end+4:]
	a.head = a.head[:0]
	if len(header) < 12 || header[9] != '2' {
		return nil, fmt.Errorf("the server answered: %.600s", data)
	}
	a.left, a.chunked, a.upToDate, a.offset = 0, false, false, a.offset[:0]
	a.count, a.front, a.back = 0, a.front[:0], a.back[:0]
	for len(header) > 0 {
		line := header
		if at := bytes.IndexByte(header, '\n'); at >= 0 {
			line, header = header[:at], header[at+1:]
		} else {
			header = nil
		}
		a.field(line)
	}
	a.state = inBody
	if a.chunked {
		a.state, a.line = inSize, a.line[:0]
	}
	return rest, nil
}

func (a *httpAnswer) field(line []byte) {
	colon := bytes.IndexByte(line, ':')
	if colon < 0 {
		return
	}
	name, value := line[:colon], bytes.TrimSpace(line[colon+1:])
	// The length tells most names apart before any letters are compared.
	switch len(name) {
	case len("content-length"):
		if bytes.EqualFold(name, []byte("content-length")) {
			a.left = digits(value)
		}
	case len("transfer-encoding"):
		if bytes.EqualFold(name, []byte("transfer-encoding")) {
			a.chunked = bytes.EqualFold(value, []byte("chunked"))
		} else if bytes.EqualFold(name, []byte("stream-up-to-date")) {
			a.upToDate = true
		}
	case len("stream-next-offset"):
		if bytes.EqualFold(name, []byte("stream-next-offset")) {
			a.offset = append(a.offset[:0], value...)
		}
	}
}

func (a *httpAnswer) feedChunks(data []byte) (bool, error) {
	for len(data) > 0 {
		switch a.state {
		case inSize, inTrailer:
			at := bytes.IndexByte(data, '\n')
			if at < 0 {
				a.line = append(a.line, data...)
				return false, nil
			}
			line := append(a.line, data[:at]...)
			data = data[at+1:]
			a.line = line[:0]
			if a.state == inTrailer {
				if len(bytes.TrimSpace(line)) == 0 {
					return true, nil
				}
				continue
			}
			size, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 31)
			if err != nil {
				return false, fmt.Errorf("a chunk of size %q", line)
			}
			a.left, a.state = int(size), inChunk
			if size == 0 {
				a.state = inTrailer
			}
		case inChunk:
			part := data
			if len(part) > a.left {
				part = part[:a.left]
			}
			a.body(part)
			a.left -= len(part)
			data = data[len(part):]
			if a.left == 0 {
				a.state, a.left = inChunkEnd, 2
			}
		case inChunkEnd:
			skip := a.left
			if skip > len(data) {
				skip = len(data)
			}
			a.left -= skip
			data = data[skip:]
			if a.left == 0 {
				a.state = inSize
			}
		}
	}
	return false, nil
}

func (a *httpAnswer) body(part []byte) {
	a.count += bytes.Count(part, []byte{marker})
	if room := endBytes - len(a.front); room > 0 {
		if room > len(part) {
			room = len(part)
		}
		a.front = append(a.front, part[:room]...)
	}
	if len(part) >= endBytes {
		a.back = append(a.back[:0], part[len(part)-endBytes:]...)
		return
	}
	if extra := len(a.back) + len(part) - endBytes; extra > 0 {
		a.back = a.back[:copy(a.back, a.back[extra:])]
	}
	a.back = append(a.back, part...)
}

// number finds what stands after a key near either end of the body.
func (a *httpAnswer) number(key string) (int, error) {
	for _, end := range [][]byte{a.back, a.front} {
		if at := bytes.LastIndex(end, []byte(key)); at >= 0 {
			return digits(end[at+len(key):]), nil
		}
	}
	return 0, fmt.Errorf("no %s in an answer that ends with %q", key, a.back)
}

func digits(text []byte) int {
	value := 0
	for _, digit := range bytes.TrimLeft(text, " ") {
		if digit < '0' || digit > '9' {
			break
		}
		value = value*10 + int(digit-'0')
	}
	return value
}

// pass follows one reading of everything, from the beginning to the end, and starts over.
type pass struct {
	total int
	seen  int
}

func (p *pass) finish() error {
	if p.seen != p.total {
		return fmt.Errorf("a pass over everything found %d of %d records", p.seen, p.total)
	}
	p.seen = 0
	return nil
}

// httpAppend sends the same append, or the same row of them, again and again.
type httpAppend struct {
	appends
	order   *order
	answer  httpAnswer
	answers int // How many of a row are there.
}

func (s *httpAppend) greet(int) error { return nil }

func (s *httpAppend) feed(data []byte) (int, bool, error) {
	for {
		_, done, err := s.answer.feed(data)
		if !done || err != nil {
			return 0, false, err
		}
		if s.answers++; s.answers >= s.order.Answers {
			s.answers = 0
			return s.order.Records, true, nil
		}
		if data = s.answer.rest; len(data) == 0 {
			return 0, false, nil
		}
	}
}

// topicsRead follows next_from_seq.
type topicsRead struct {
	order  *order
	pass   pass
	cursor int
	body   []byte
	data   []byte
	answer httpAnswer
}

func (s *topicsRead) greet(int) error { return nil }

func (s *topicsRead) next() []byte {
	s.body = append(s.body[:0], `{"from_seq":`...)
	s.body = strconv.AppendInt(s.body, int64(s.cursor), 10)
	s.body = append(s.body, `,"limit":`...)
	s.body = strconv.AppendInt(s.body, int64(s.order.Limit), 10)
	s.body = append(s.body, '}')
	s.data = append(append(append(s.data[:0], "POST "...), s.order.Name...), " HTTP/1.1\r\nHost: localhost\r\n"...)
	s.data = append(s.data, "Content-Type: application/json\r\nContent-Length: "...)
	s.data = append(strconv.AppendInt(s.data, int64(len(s.body)), 10), blankLine...)
	s.data = append(s.data, s.body...)
	return s.data
}

func (s *topicsRead) feed(data []byte) (int, bool, error) {
	records, done, err := s.answer.feed(data)
	s.pass.seen += records
	if !done || err != nil {
		return records, done, err
	}
	if s.cursor, err = s.answer.number(`"next_from_seq":`); err != nil {
		return records, done, err
	}
	head, err := s.answer.number(`"head_seq":`)
	if err == nil && s.cursor >= head {
		s.cursor = 0
		err = s.pass.finish()
	}
	return records, done, err
}

// streamsRead follows Stream-Next-Offset, as the Durable Streams protocol has it. The server chooses how much it gives.
type streamsRead struct {
	order  *order
	pass   pass
	cursor []byte
	data   []byte
	answer httpAnswer
}

func (s *streamsRead) greet(int) error { return nil }

func (s *streamsRead) next() []byte {
	if len(s.cursor) == 0 {
		s.cursor = append(s.cursor, "-1"...)
	}
	s.data = append(append(append(s.data[:0], "GET "...), s.order.Name...), "?offset="...)
	s.data = append(append(s.data, s.cursor...), " HTTP/1.1\r\nHost: localhost\r\n\r\n"...)
	return s.data
}

func (s *streamsRead) feed(data []byte) (int, bool, error) {
	records, done, err := s.answer.feed(data)
	s.pass.seen += records
	if !done || err != nil {
		return records, done, err
	}
	s.cursor = append(s.cursor[:0], s.answer.offset...)
	if s.answer.upToDate {
		s.cursor = s.cursor[:0]
		err = s.pass.finish()
	}
	return records, done, err
}
