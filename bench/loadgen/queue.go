package main

import (
	"bytes"
	"fmt"
	"strconv"
)

// A worker of a queue goes round in three steps: it produces a batch of jobs, claims as many, and acknowledges those.
// Whoever claims has produced before, so there is always enough for all, and the queue stays short. Jobs are counted
// when they are acknowledged; of the three steps only the claim is timed.
const (
	producing = iota
	claiming
	acknowledging
)

type rounds struct {
	step int
}

func (r *rounds) timed() bool { return r.step == claiming }

// topicsJobs speaks to a queue of ours.
type topicsJobs struct {
	rounds
	order  *order
	node   string
	append []byte
	claim  []byte
	ack    []byte
	body   []byte
	seqs   []byte
	answer httpAnswer
}

func newTopicsJobs(wanted *order, index int) *topicsJobs {
	s := &topicsJobs{order: wanted, node: "w" + strconv.Itoa(index), append: []byte(wanted.Request)}
	s.step, s.answer.keep = acknowledging, true
	body := fmt.Sprintf(`{"node":%q,"max":%d}`, s.node, wanted.Records)
	s.claim = s.post(nil, "/claim", []byte(body))
	return s
}

func (s *topicsJobs) post(data []byte, word string, body []byte) []byte {
	data = append(append(append(data[:0], "POST "...), s.order.Name...), word...)
	data = append(data, " HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: "...)
	data = append(strconv.AppendInt(data, int64(len(body)), 10), blankLine...)
	return append(data, body...)
}

func (s *topicsJobs) greet(int) error { return nil }

func (s *topicsJobs) next() []byte {
	s.step = (s.step + 1) % 3
	switch s.step {
	case producing:
		return s.append
	case claiming:
		return s.claim
	}
	s.body = append(append(append(s.body[:0], `{"node":"`...), s.node...), `","seqs":[`...)
	s.body = append(append(s.body, s.seqs...), "]}"...)
	s.ack = s.post(s.ack, "/ack", s.body)
	return s.ack
}

func (s *topicsJobs) feed(data []byte) (int, bool, error) {
	_, done, err := s.answer.feed(data)
	if !done || err != nil {
		return 0, done, err
	}
	switch s.step {
	case claiming:
		err = s.claimed(s.answer.whole)
	case acknowledging:
		if acked, found := s.answer.number(`"acked":`); found != nil || acked != s.order.Records {
			err = fmt.Errorf("not every job was acknowledged: %.300s", s.answer.whole)
		}
		return s.order.Records, true, err
	}
	return 0, true, err
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
	order  *order
	append []byte
	claim  []byte
	acks   []byte
	heard  []byte
	count  int
}

func newNatsJobs(wanted *order, talk natsConversation) *natsJobs {
	s := &natsJobs{natsConversation: talk, order: wanted}
	s.step = acknowledging
	s.append = bytes.ReplaceAll([]byte(wanted.Request), []byte("_INBOX.bench0 "), []byte(talk.inbox()+" "))
	body := `{"batch":` + strconv.Itoa(wanted.Records) + `}`
	subject := "$JS.API.CONSUMER.MSG.NEXT." + wanted.Name + "." + wanted.Name
	s.claim = []byte("PUB " + subject + " " + s.inbox() + " " + strconv.Itoa(len(body)) + "\r\n" + body + "\r\n")
	return s
}

func (s *natsJobs) next() []byte {
	s.step = (s.step + 1) % 3
	s.count, s.heard = 0, s.heard[:0]
	switch s.step {
	case producing:
		return s.append
	case claiming:
		s.acks = s.acks[:0]
		return s.claim
	}
	return s.acks
}

func (s *natsJobs) feed(data []byte) (int, bool, error) {
	s.heard = append(s.heard, data...)
	for {
		at := bytes.IndexByte(s.heard, '\n')
		if at < 0 {
			return 0, false, nil
		}
		fields := bytes.Fields(s.heard[:at])
		if len(fields) == 0 {
			s.heard = s.heard[at+1:]
			continue
		}
		if string(fields[0]) == "PING" {
			s.heard = s.heard[at+1:]
			continue
		}
		if string(fields[0]) != "MSG" {
			return 0, false, fmt.Errorf("nats answered: %.300s", s.heard)
		}
		size := digits(fields[len(fields)-1])
		if len(s.heard) < at+1+size+2 {
			return 0, false, nil
		}
		if err := s.message(fields, s.heard[at+1:at+1+size]); err != nil {
			return 0, false, err
		}
		s.heard = s.heard[at+1+size+2:]
		s.count++
		if s.count == s.order.Records {
			if s.step == acknowledging {
				return s.order.Records, true, nil
			}
			return 0, true, nil
		}
	}
}

func (s *natsJobs) message(fields [][]byte, body []byte) error {
	if bytes.Contains(body, []byte(`"error"`)) {
		return fmt.Errorf("nats answered: %.300s", body)
	}
	if s.step != claiming {
		return nil
	}
	if len(fields) != 5 {
		return fmt.Errorf("a job without a place for its acknowledgement: %q", fields)
	}
	s.acks = append(append(append(s.acks, "PUB "...), fields[3]...), ' ')
	s.acks = append(append(s.acks, s.inbox()...), " 4\r\n+ACK\r\n"...)
	return nil
}
