package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// appends are the requests of a session that appends, in turns.
type appends struct {
	all  [][]byte
	turn int
	keys []int  // Where each has its idempotency key, -1 where it has none.
	key  uint64 // The number of the last key; no two connections and no two runs come to the same.
}

// What stands in a request where each time another idempotency key goes.
var keyPlace = bytes.Repeat([]byte{'#'}, 20)

// newAppends lets each connection begin with another one, so that they do not send the same all at once.
func newAppends(wanted *order, index int) appends {
	all := [][]byte{[]byte(wanted.Request)}
	for _, other := range wanted.Others {
		all = append(all, []byte(other))
	}
	return appends{all: all, turn: index % len(all), key: uint64(time.Now().UnixNano()) + uint64(index)<<48}
}

func (a *appends) next() []byte {
	data := a.all[a.turn]
	if a.keys == nil {
		a.keys = make([]int, len(a.all))
		for place, one := range a.all {
			a.keys[place] = bytes.Index(one, keyPlace)
		}
	}
	if at := a.keys[a.turn]; at >= 0 {
		a.key++
		copy(data[at:], fmt.Sprintf("%016x%04x", a.key*0x9E3779B97F4A7C15, a.key&0xFFFF))
	}
	if a.turn++; a.turn == len(a.all) {
		a.turn = 0
	}
	return data
}

func newSession(wanted *order, index int) (session, error) {
	pass, sent := pass{total: wanted.Total}, newAppends(wanted, index)
	appends := wanted.Request != ""
	talk := natsConversation{index: index}
	switch {
	case wanted.Protocol == "topics-queue":
		return newTopicsJobs(wanted, index), nil
	case wanted.Protocol == "nats-queue":
		return newNatsJobs(wanted, talk), nil
	case wanted.Protocol == "topics-ws":
		return newSocketAppend(wanted), nil
	case wanted.Protocol == "topics" && !appends:
		return &topicsRead{order: wanted, pass: pass}, nil
	case wanted.Protocol == "streams" && !appends:
		return &streamsRead{order: wanted, pass: pass}, nil
	case wanted.Protocol == "topics", wanted.Protocol == "streams":
		return &httpAppend{order: wanted, appends: sent}, nil
	case wanted.Protocol == "redis" && appends:
		return &redisAppend{order: wanted, appends: sent}, nil
	case wanted.Protocol == "redis":
		return &redisRead{order: wanted, pass: pass}, nil
	case wanted.Protocol == "nats" && appends:
		// The order does not know the connection: its requests name the inbox of the first one.
		for place, data := range sent.all {
			sent.all[place] = bytes.ReplaceAll(data, []byte("_INBOX.bench0 "), []byte(talk.inbox()+" "))
		}
		return &natsAppend{natsConversation: talk, order: wanted, appends: sent}, nil
	case wanted.Protocol == "nats":
		return &natsRead{natsConversation: talk, order: wanted, pass: pass}, nil
	}
	return nil, fmt.Errorf("there is no protocol %q", wanted.Protocol)
}

// redisAppend sends pipelined XADDs. An answer of two lines, a length and an id, comes back for each.
type redisAppend struct {
	appends
	order *order
	lines int
}

func (s *redisAppend) greet(int) error { return nil }

func (s *redisAppend) next() []byte {
	s.lines = 0
	return s.appends.next()
}

func (s *redisAppend) feed(data []byte) (int, bool, error) {
	if data[0] == '-' || bytes.Contains(data, []byte("\n-")) {
		return 0, false, fmt.Errorf("redis answered: %.200s", data)
	}
	s.lines += bytes.Count(data, []byte{'\n'})
	if s.lines < 2*s.order.Records {
		return 0, false, nil
	}
	return s.order.Records, true, nil
}

// redisRead follows entry ids with XRANGE. An answer begins with its number of entries and ends with the last payload,
// so that it is complete when as many markers were seen and its last bytes are the end of a payload.
type redisRead struct {
	order   *order
	pass    pass
	cursor  []byte
	data    []byte
	front   []byte
	back    []byte
	entries int
	seen    int
}

func (s *redisRead) greet(int) error { return nil }

func (s *redisRead) next() []byte {
	if len(s.cursor) == 0 {
		s.cursor = append(s.cursor, '-')
	}
	s.front, s.back, s.entries, s.seen = s.front[:0], s.back[:0], -1, 0
	s.data = append(s.data[:0], "*6\r\n"...)
	s.data = bulk(s.data, []byte("XRANGE"))
	s.data = bulk(s.data, []byte(s.order.Name))
	s.data = bulk(s.data, s.cursor)
	s.data = bulk(s.data, []byte("+"))
	s.data = bulk(s.data, []byte("COUNT"))
	s.data = bulk(s.data, []byte(strconv.Itoa(s.order.Limit)))
	return s.data
}

func bulk(data, text []byte) []byte {
	data = append(data, '$')
	data = append(strconv.AppendInt(data, int64(len(text)), 10), "\r\n"...)
	return append(append(data, text...), "\r\n"...)
}

func (s *redisRead) feed(data []byte) (int, bool, error) {
	if s.entries < 0 {
		s.front = append(s.front, data...)
		at := bytes.IndexByte(s.front, '\n')
		if at < 0 {
			return 0, false, nil
		}
		if s.front[0] != '*' {
			return 0, false, fmt.Errorf("redis answered: %.200s", s.front)
		}
		s.entries = digits(s.front[1:at])
		data = s.front[at+1:]
	}
	records := bytes.Count(data, []byte{marker})
	s.seen += records
	s.pass.seen += records
	s.keep(data)
	if s.seen < s.entries || (s.entries > 0 && !bytes.HasSuffix(s.back, []byte("~\"}\r\n"))) {
		return records, false, nil
	}
	return records, true, s.turn()
}

// keep holds on to the last bytes, which are longer than one entry.
func (s *redisRead) keep(data []byte) {
	if len(data) >= endBytes {
		s.back = append(s.back[:0], data[len(data)-endBytes:]...)
		return
	}
	if extra := len(s.back) + len(data) - endBytes; extra > 0 {
		s.back = s.back[:copy(s.back, s.back[extra:])]
	}
	s.back = append(s.back, data...)
}

// turn moves the cursor behind the last entry, or back to the beginning.
func (s *redisRead) turn() error {
	if s.entries < s.order.Limit {
		s.cursor = s.cursor[:0]
		return s.pass.finish()
	}
	fields := bytes.LastIndex(s.back, []byte("*2\r\n$1\r\nd\r\n"))
	if fields < 2 {
		return fmt.Errorf("no last entry in %q", s.back)
	}
	id := s.back[bytes.LastIndexByte(s.back[:fields-2], '\n')+1 : fields-2]
	s.cursor = append(append(s.cursor[:0], '('), id...)
	return nil
}

// natsConversation opens a NATS connection with an inbox for answers. The server's pings stay unanswered: it hangs up
// after minutes, and no measurement lasts that long.
type natsConversation struct {
	index int
}

func (s *natsConversation) inbox() string { return "_INBOX.bench" + strconv.Itoa(s.index) }

func (s *natsConversation) greet(fd int) error {
	hello := `CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"lang":"bench"}` +
		"\r\nSUB " + s.inbox() + " 1\r\nPING\r\n"
	if _, err := syscall.Write(fd, []byte(hello)); err != nil {
		return err
	}
	buffer, heard := make([]byte, 65536), []byte{}
	for !bytes.Contains(heard, []byte("PONG\r\n")) {
		count, err := syscall.Read(fd, buffer)
		if err != nil {
			return err
		}
		if count == 0 {
			return fmt.Errorf("nats hung up after: %.300s", heard)
		}
		heard = append(heard, buffer[:count]...)
	}
	return nil
}

// natsAppend publishes to a stream; every message is acknowledged by one JSON object.
type natsAppend struct {
	natsConversation
	appends
	order *order
	acks  int
}

func (s *natsAppend) next() []byte {
	s.acks = 0
	return s.appends.next()
}

func (s *natsAppend) feed(data []byte) (int, bool, error) {
	if bytes.Contains(data, []byte(`"error"`)) || bytes.Contains(data, []byte("-ERR")) || data[0] == 'H' {
		return 0, false, fmt.Errorf("nats answered: %.300s", data)
	}
	s.acks += bytes.Count(data, []byte{'}'})
	if s.acks < s.order.Records {
		return 0, false, nil
	}
	return s.order.Records, true, nil
}

// natsRead pulls batches through a consumer without acknowledgements, the cheapest there is. A consumer goes over its
// stream once, so a pass begins with making one.
type natsRead struct {
	natsConversation
	order   *order
	pass    pass
	passes  int
	made    bool // The consumer of this pass is there.
	data    []byte
	seen    int
	created []byte // The answer to its making, so far.
}

func (s *natsRead) consumer() string { return fmt.Sprintf("c%d-%d-%d", os.Getpid(), s.index, s.passes) }

func (s *natsRead) next() []byte {
	s.seen = 0
	var subject, body string
	if !s.made {
		s.passes++
		s.created = s.created[:0]
		subject = "$JS.API.CONSUMER.DURABLE.CREATE." + s.order.Name + "." + s.consumer()
		body = fmt.Sprintf(
			`{"stream_name":%q,"config":{"durable_name":%q,"deliver_policy":"all","ack_policy":"none","mem_storage":true}}`,
			s.order.Name, s.consumer(),
		)
	} else {
		subject = "$JS.API.CONSUMER.MSG.NEXT." + s.order.Name + "." + s.consumer()
		body = `{"batch":` + strconv.Itoa(s.order.Limit) + `}`
	}
	s.data = append(s.data[:0], "PUB "+subject+" "+s.inbox()+" "+strconv.Itoa(len(body))+"\r\n"+body+"\r\n"...)
	return s.data
}

func (s *natsRead) feed(data []byte) (int, bool, error) {
	if !s.made {
		return s.feedCreated(data)
	}
	records := bytes.Count(data, []byte{marker})
	if records == 0 && bytes.Contains(data, []byte("NATS/1.0")) {
		return 0, false, fmt.Errorf("nats answered: %.300s", data)
	}
	s.seen += records
	s.pass.seen += records
	if s.pass.seen >= s.pass.total {
		s.made = false
		return records, true, s.pass.finish()
	}
	return records, s.seen >= s.order.Limit, nil
}

func (s *natsRead) feedCreated(data []byte) (int, bool, error) {
	s.created = append(s.created, data...)
	if bytes.Contains(s.created, []byte(`"error"`)) {
		return 0, false, fmt.Errorf("nats answered: %.300s", s.created)
	}
	// The end of the last message of the pass before may still come first, and it ends alike.
	s.made = bytes.Contains(s.created, []byte(`"config"`)) && bytes.HasSuffix(s.created, []byte("}\r\n"))
	return 0, s.made, nil
}
