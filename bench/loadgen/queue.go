package main

import (
	"bytes"
	"fmt"
	"strconv"
)

// A worker of a queue goes round in two steps: it claims a batch of jobs, and when it has them it acknowledges them and
// produces as many new ones, in two requests that are sent together. Whoever claims has produced before, so there is
// always enough for all, and the queue stays short. Jobs are counted when they are acknowledged; only the claims are
// timed.
type rounds struct {
	step int
}

const (
	beginning = iota // The first jobs are produced.
	claiming
	settling // The jobs of the claim are acknowledged, and the next ones produced.
)

func (r *rounds) advance() {
	if r.step++; r.step > settling {
		r.step = claiming
	}
}

func (r *rounds) timed() bool { return r.step == claiming }

// topicsJobs speaks to a queue of ours.
type topicsJobs struct {
	rounds
	order    *order
	node     string
	produce  []byte
	claim    []byte
	settle   []byte
	body     []byte
	seqs     []byte
	heard    []byte
	expected int // Answers that are still to come.
	acked    bool
}

func newTopicsJobs(wanted *order, index int) *topicsJobs {
	s := &topicsJobs{order: wanted, node: "w" + strconv.Itoa(index), produce: []byte(wanted.Request)}
	s.step = beginning - 1
	s.claim = s.post(nil, "/claim", []byte(fmt.Sprintf(`{"node":%q,"max":%d}`, s.node, wanted.Records)))
	return s
}

func (s *topicsJobs) post(data []byte, word string, body []byte) []byte {
	data = append(append(append(data[:0], "POST "...), s.order.Name...), word...)
	data = append(data, " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "...)
	data = append(strconv.AppendInt(data, int64(len(body)), 10), blankLine...)
	return append(data, body...)
}

func (s *topicsJobs) greet(int) error { return nil }

func (s *topicsJobs) next() []byte {
	s.advance()
	s.heard, s.expected = s.heard[:0], 1
	switch s.step {
	case beginning:
		return s.produce
	case claiming:
		return s.claim
	}
	s.expected, s.acked = 2, false
	s.body = append(append(append(s.body[:0], `{"node":"`...), s.node...), `","seqs":[`...)
	s.body = append(append(s.body, s.seqs...), "]}"...)
	s.settle = append(s.post(s.settle, "/ack", s.body), s.produce...)
	return s.settle
}

func (s *topicsJobs) feed(data []byte) (int, bool, error) {
	s.heard = append(s.heard, data...)
	for s.expected > 0 {
		end := bytes.Index(s.heard, blankLine)
		if end < 0 {
			return 0, false, nil
		}
		header := s.heard[:end]
		if len(header) < 12 || header[9] != '2' {
			return 0, false, fmt.Errorf("the server answered: %.600s", s.heard)
		}
		at := bytes.Index(bytes.ToLower(header), []byte("content-length:"))
		if at < 0 {
			return 0, false, fmt.Errorf("an answer without a length: %q", header)
		}
		whole := end + len(blankLine) + digits(header[at+len("content-length:"):])
		if len(s.heard) < whole {
			return 0, false, nil
		}
		if err := s.answer(s.heard[end+len(blankLine) : whole]); err != nil {
			return 0, false, err
		}
		s.heard = s.heard[whole:]
		s.expected--
	}
	if s.step == settling {
		return s.order.Records, true, nil
	}
	return 0, true, nil
}

func (s *topicsJobs) answer(body []byte) error {
	switch {
	case s.step == claiming:
		return s.claimed(body)
	case s.step == settling && !s.acked:
		s.acked = true
		if !bytes.Contains(body, []byte(`"acked":`+strconv.Itoa(s.order.Records)+`,`)) {
			return fmt.Errorf("not every job was acknowledged: %.300s", body)
		}
	}
	return nil
}

func (s *topicsJobs) claimed(answer []byte) error {
	count := 0
	s.seqs = s.seqs[:0]
	for rest := answer; ; count++ {
		at := bytes.Index(rest, []byte(`"$seq":`))
		if at < 0 {
			break
		}
		rest = rest[at+len(`"$seq":`):]
		if count > 0 {
			s.seqs = append(s.seqs, ',')
		}
		s.seqs = strconv.AppendInt(s.seqs, int64(digits(rest)), 10)
	}
	if count != s.order.Records {
		return fmt.Errorf("a claim of %d got %d jobs: %.300s", s.order.Records, count, answer)
	}
	return nil
}

// natsJobs pulls from a durable consumer of a work queue stream. Acknowledgements are confirmed, as ours are.
type natsJobs struct {
	natsConversation
	rounds
	order    *order
	produce  []byte
	claim    []byte
	acks     []byte
	heard    []byte
	expected int // Messages that are still to come.
}

func newNatsJobs(wanted *order, talk natsConversation) *natsJobs {
	s := &natsJobs{natsConversation: talk, order: wanted}
	s.step = beginning - 1
	s.produce = bytes.ReplaceAll([]byte(wanted.Request), []byte("_INBOX.bench0 "), []byte(talk.inbox()+" "))
	body := `{"batch":` + strconv.Itoa(wanted.Records) + `}`
	subject := "$JS.API.CONSUMER.MSG.NEXT." + wanted.Name + "." + wanted.Name
	s.claim = []byte("PUB " + subject + " " + s.inbox() + " " + strconv.Itoa(len(body)) + "\r\n" + body + "\r\n")
	return s
}

func (s *natsJobs) next() []byte {
	s.advance()
	s.heard, s.expected = s.heard[:0], s.order.Records
	switch s.step {
	case beginning:
		return s.produce
	case claiming:
		s.acks = s.acks[:0]
		return s.claim
	}
	s.expected = 2 * s.order.Records
	s.acks = append(s.acks, s.produce...)
	return s.acks
}

func (s *natsJobs) feed(data []byte) (int, bool, error) {
	s.heard = append(s.heard, data...)
	for s.expected > 0 {
		at := bytes.IndexByte(s.heard, '\n')
		if at < 0 {
			return 0, false, nil
		}
		fields := bytes.Fields(s.heard[:at])
		if len(fields) == 0 || string(fields[0]) == "PING" {
			s.heard = s.heard[at+1:]
			continue
		}
		if string(fields[0]) != "MSG" {
			return 0, false, fmt.Errorf("nats answered: %.300s", s.heard)
		}
		whole := at + 1 + digits(fields[len(fields)-1]) + 2
		if len(s.heard) < whole {
			return 0, false, nil
		}
		counts, err := s.message(fields, s.heard[at+1:whole])
		if err != nil {
			return 0, false, err
		}
		s.heard = s.heard[whole:]
		if counts {
			s.expected--
		}
	}
	if s.step == settling {
		return s.order.Records, true, nil
	}
	return 0, true, nil
}

// message tells whether it is one that was expected. Now and then nats confirms an acknowledgement a second time, which
// then arrives in the middle of a claim: a job is what says where to acknowledge it.
func (s *natsJobs) message(fields [][]byte, body []byte) (bool, error) {
	if bytes.Contains(body, []byte(`"error"`)) {
		return false, fmt.Errorf("nats answered: %.300s", body)
	}
	if s.step != claiming {
		return true, nil
	}
	if len(fields) != 5 {
		return false, nil
	}
	s.acks = append(append(append(s.acks, "PUB "...), fields[3]...), ' ')
	s.acks = append(append(s.acks, s.inbox()...), " 4\r\n+ACK\r\n"...)
	return true, nil
}
