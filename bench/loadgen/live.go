package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// liveOrder asks how long records take from a writer to everyone who watches. Appends leave at a fixed rate, whatever
// the server does meanwhile, and a record's time runs from the moment it was due: a server that is late cannot make the
// load smaller, nor its times shorter.
//
// Every payload carries its due time behind a stamp, and the watchers look for nothing else: the framing of event
// streams and of WebSockets costs the generator the same, which is next to nothing.
type liveOrder struct {
	Address  string        `json:"address"`
	Watchers []liveWatcher `json:"watchers"`
	Ready    string        `json:"ready"`  // What a watcher has heard when it is live.
	Frame    string        `json:"frame"`  // What every frame of records holds once.
	Append   []byte        `json:"append"` // One append of one record, with a stamp and sixteen zeros in it.
	Writers  int           `json:"writers"`
	Rate     float64       `json:"rate"`   // Appends a second.
	Copies   int           `json:"copies"` // How often each record must be delivered.
	WarmUp   float64       `json:"warm_up_s"`
	Seconds  float64       `json:"seconds"`
}

// liveWatcher is what a watcher says: at once, and after the header of the answer.
type liveWatcher struct {
	Hello []byte `json:"hello"`
	Then  []byte `json:"then"`
}

type liveAnswer struct {
	Records    int     `json:"records"`
	Deliveries int     `json:"deliveries"`
	Frames     int     `json:"frames"`
	Seconds    float64 `json:"seconds"`
	CPU        float64 `json:"cpu_s"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	Max        float64 `json:"max_ms"`
	AppendP50  float64 `json:"append_p50_ms"`
	AppendP99  float64 `json:"append_p99_ms"`
}

var stamp = []byte("~t~")

const stampDigits = 16

// After the last append everything has to arrive within this time.
const leftovers = 30 * time.Second

type watcher struct {
	fd    int
	carry []byte // The beginning of a stamp whose end has not arrived yet.
}

type writer struct {
	fd     int
	bytes  []byte
	place  int // Of the digits in the bytes.
	answer httpAnswer
	due    int64
	unsent []byte
}

type live struct {
	order    *liveOrder
	epoll    int
	timer    int
	start    time.Time
	watchers []watcher
	writers  []writer
	free     []int
	waiting  []int64 // Due times of appends for which no connection was free.
	buffer   []byte

	interval, from, to int64 // Nanoseconds since the start; records due between the two are measured.
	due                int64
	sent, delivered    int
	frames             int
	times, appends     histogram
}

func runLive(raw []byte) (*liveAnswer, error) {
	var wanted liveOrder
	if err := json.Unmarshal(raw, &wanted); err != nil {
		return nil, err
	}
	l := &live{order: &wanted, buffer: make([]byte, 1<<20), interval: int64(1e9 / wanted.Rate)}
	var err error
	if l.epoll, err = syscall.EpollCreate1(0); err != nil {
		return nil, err
	}
	if err := l.connect(); err != nil {
		return nil, err
	}
	runtime.GC()
	return l.measure()
}

// connect opens everything; events carry the place among the watchers, then the writers, then the timer.
func (l *live) connect() error {
	for _, says := range l.order.Watchers {
		fd, err := l.open(says)
		if err != nil {
			return err
		}
		l.watchers = append(l.watchers, watcher{fd: fd})
	}
	for index := 0; index < l.order.Writers; index++ {
		fd, err := dial(l.order.Address)
		if err != nil {
			return err
		}
		own := append([]byte(nil), l.order.Append...)
		place := bytes.Index(own, stamp)
		if place < 0 {
			return errors.New("the append has no stamp")
		}
		l.writers = append(l.writers, writer{fd: fd, bytes: own, place: place + len(stamp)})
		l.free = append(l.free, index)
	}
	timer, _, errno := syscall.RawSyscall(syscall.SYS_TIMERFD_CREATE, 1, 0, 0) // CLOCK_MONOTONIC
	if errno != 0 {
		return errno
	}
	l.timer = int(timer)
	for index := range l.watchers {
		if err := l.listen(index, l.watchers[index].fd); err != nil {
			return err
		}
	}
	for index := range l.writers {
		if err := l.listen(len(l.watchers)+index, l.writers[index].fd); err != nil {
			return err
		}
	}
	return l.listen(len(l.watchers)+len(l.writers), l.timer)
}

// open connects a watcher and waits until it is live.
func (l *live) open(says liveWatcher) (int, error) {
	fd, err := dial(l.order.Address)
	if err != nil {
		return 0, err
	}
	if err := writeAll(fd, says.Hello); err != nil {
		return 0, err
	}
	heard, told := []byte{}, len(says.Then) == 0
	for {
		count, err := transfer(syscall.SYS_READ, fd, l.buffer)
		if err != nil {
			return 0, err
		}
		if count == 0 {
			return 0, fmt.Errorf("a watcher was sent away: %.600s", heard)
		}
		heard = append(heard, l.buffer[:count]...)
		if len(heard) >= 12 && heard[9] != '2' && heard[9] != '1' {
			return 0, fmt.Errorf("a watcher was answered: %.600s", heard)
		}
		if !told && bytes.Contains(heard, blankLine) {
			told = true
			if err := writeAll(fd, says.Then); err != nil {
				return 0, err
			}
		}
		if told && bytes.Contains(heard, []byte(l.order.Ready)) {
			return fd, nil
		}
	}
}

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		count, err := transfer(syscall.SYS_WRITE, fd, data)
		if err != nil {
			return err
		}
		data = data[count:]
	}
	return nil
}

func (l *live) listen(index, fd int) error {
	if err := syscall.SetNonblock(fd, true); err != nil {
		return err
	}
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(index)}
	return syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_ADD, fd, &event)
}

func (l *live) measure() (*liveAnswer, error) {
	l.start = time.Now()
	l.from = int64(l.order.WarmUp * 1e9)
	l.to = l.from + int64(l.order.Seconds*1e9)
	if err := l.arm(); err != nil {
		return nil, err
	}
	events := make([]syscall.EpollEvent, 512)
	began, ended := false, false
	var cpu, spent float64
	for {
		gather()
		count, err := wait(l.epoll, events)
		if err != nil {
			return nil, err
		}
		now := l.now()
		for _, event := range events[:count] {
			if err := l.handle(int(event.Fd), event.Events); err != nil {
				return nil, err
			}
			// An append leaves when it is due, however many watchers are still to be read.
			if now = l.now(); now >= l.due+l.interval {
				if err := l.tick(now); err != nil {
					return nil, err
				}
			}
		}
		if !began && now >= l.from {
			began, cpu = true, cpuSeconds()
		}
		if !ended && now >= l.to {
			ended, spent = true, cpuSeconds()-cpu
		}
		if l.due >= l.to && l.delivered >= l.sent*l.order.Copies && len(l.free) == len(l.writers) {
			if ended {
				break
			}
		} else if now > l.to+int64(leftovers) {
			return nil, fmt.Errorf("%d of %d deliveries came", l.delivered, l.sent*l.order.Copies)
		}
	}
	return &liveAnswer{
		Records: l.sent, Deliveries: l.delivered, Frames: l.frames, Seconds: l.order.Seconds, CPU: spent,
		P50: l.times.quantile(0.50), P99: l.times.quantile(0.99), Max: float64(l.times.max) / 1e6,
		AppendP50: l.appends.quantile(0.50), AppendP99: l.appends.quantile(0.99),
	}, nil
}

// gather sleeps for as long as a network card waits for more before it interrupts. Without it the server would pay, with
// every frame, for waking a process that reads one frame and sleeps again; no watcher on another machine costs it that.
// What it adds to a delivery is measured with it.
func gather() {
	rest := syscall.Timespec{Nsec: 50_000}
	_, _, _ = syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&rest)), 0, 0)
}

// arm makes the timer fire at the rate of the appends.
func (l *live) arm() error {
	spec := [4]int64{l.interval / 1e9, l.interval % 1e9, l.interval / 1e9, l.interval % 1e9}
	_, _, errno := syscall.RawSyscall6(
		syscall.SYS_TIMERFD_SETTIME, uintptr(l.timer), 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0,
	)
	if errno != 0 {
		return errno
	}
	l.due = l.now()
	return nil
}

func (l *live) now() int64 {
	return int64(time.Since(l.start))
}

func (l *live) handle(index int, events uint32) error {
	if index < len(l.watchers) {
		return l.hear(&l.watchers[index])
	}
	index -= len(l.watchers)
	if index < len(l.writers) {
		return l.answered(index, events)
	}
	// The timer only ends the wait: what is due is sent after every event.
	var expired [8]byte
	if _, err := transfer(syscall.SYS_READ, l.timer, expired[:]); err != nil && err != syscall.EAGAIN {
		return err
	}
	return nil
}

// tick sends what is due.
func (l *live) tick(now int64) error {
	for l.due+l.interval <= now && l.due < l.to {
		l.due += l.interval
		if l.due < l.to {
			l.waiting = append(l.waiting, l.due)
		}
	}
	return l.send()
}

func (l *live) send() error {
	for len(l.waiting) > 0 && len(l.free) > 0 {
		index := l.free[len(l.free)-1]
		l.free = l.free[:len(l.free)-1]
		w := &l.writers[index]
		w.due = l.waiting[0]
		copy(l.waiting, l.waiting[1:])
		l.waiting = l.waiting[:len(l.waiting)-1]
		putHex(w.bytes[w.place:w.place+stampDigits], uint64(w.due))
		if w.due >= l.from {
			l.sent++
		}
		w.unsent = w.bytes
		if err := l.push(index); err != nil {
			return err
		}
	}
	return nil
}

func (l *live) push(index int) error {
	w := &l.writers[index]
	count, err := transfer(syscall.SYS_WRITE, w.fd, w.unsent)
	if err != nil && err != syscall.EAGAIN {
		return err
	}
	w.unsent = w.unsent[count:]
	events := uint32(syscall.EPOLLIN)
	if len(w.unsent) > 0 {
		events |= syscall.EPOLLOUT
	}
	event := syscall.EpollEvent{Events: events, Fd: int32(len(l.watchers) + index)}
	return syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_MOD, w.fd, &event)
}

func (l *live) answered(index int, events uint32) error {
	w := &l.writers[index]
	if events&syscall.EPOLLOUT != 0 && len(w.unsent) > 0 {
		return l.push(index)
	}
	count, err := transfer(syscall.SYS_READ, w.fd, l.buffer)
	if err == syscall.EAGAIN {
		return nil
	}
	if err != nil {
		return err
	}
	if count == 0 {
		return errors.New("the server has closed a writer's connection")
	}
	_, done, err := w.answer.feed(l.buffer[:count])
	if err != nil || !done {
		return err
	}
	if w.due >= l.from {
		l.appends.add(l.now() - w.due)
	}
	l.free = append(l.free, index)
	return l.send()
}

// hear takes what arrived for a watcher and times every record in it.
func (l *live) hear(w *watcher) error {
	count, err := transfer(syscall.SYS_READ, w.fd, l.buffer[len(w.carry):])
	if err == syscall.EAGAIN {
		return nil
	}
	if err != nil {
		return err
	}
	if count == 0 {
		return errors.New("the server has closed a watcher's connection")
	}
	copy(l.buffer, w.carry)
	data, now := l.buffer[:len(w.carry)+count], l.now()
	w.carry = w.carry[:0]
	frame := []byte(l.order.Frame)
	measured := false
	whole := data
	for {
		at := bytes.Index(data, stamp)
		if at < 0 {
			break
		}
		if len(data) < at+len(stamp)+stampDigits {
			w.carry = append(w.carry, data[at:]...)
			break
		}
		due := int64(hex(data[at+len(stamp) : at+len(stamp)+stampDigits]))
		if due >= l.from {
			l.times.add(now - due)
			l.delivered++
			measured = true
		}
		data = data[at+len(stamp)+stampDigits:]
	}
	if len(w.carry) == 0 {
		w.carry = append(w.carry, data[len(data)-begun(data):]...)
	}
	if measured {
		l.frames += bytes.Count(whole, frame)
	}
	return nil
}

// begun tells how many bytes at the end may be the beginning of a stamp.
func begun(data []byte) int {
	for size := len(stamp) - 1; size > 0; size-- {
		if bytes.HasSuffix(data, stamp[:size]) {
			return size
		}
	}
	return 0
}

func putHex(place []byte, value uint64) {
	const letters = "0123456789abcdef"
	for index := len(place) - 1; index >= 0; index-- {
		place[index] = letters[value&15]
		value >>= 4
	}
}

func hex(place []byte) (value uint64) {
	for _, letter := range place {
		if letter >= 'a' {
			letter -= 'a' - 10
		} else {
			letter -= '0'
		}
		value = value<<4 | uint64(letter)
	}
	return value
}
