package main

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// session is one connection's side of a protocol. One request is on its way at a time.
type session interface {
	// greet does what the protocol wants before the first request, on the still blocking socket.
	greet(fd int) error
	// next gives the bytes of the next request; they stay unchanged until its answer is complete.
	next() []byte
	// feed takes bytes as they arrive and tells how many records they completed, and whether the answer is complete.
	feed(data []byte) (records int, done bool, err error)
}

// picky sessions send requests of several kinds, of which only some are timed.
type picky interface {
	// timed tells whether the time of the last answer is to be counted.
	timed() bool
}

type connection struct {
	fd      int
	session session
	unsent  []byte
	started time.Time
	heard   bool // An answer since the warm-up.
}

// loop drives all connections until the time is over or the requests are used up.
type loop struct {
	order       *order
	epoll       int
	connections []connection
	buffer      []byte
	events      []syscall.EpollEvent
	answered    time.Time // When something arrived last.
	sent        int
	flying      int  // Requests without an answer yet.
	resting     bool // Nothing more is sent.
	unheard     int  // Connections without an answer since the warm-up.

	// What was measured since the warm-up ended.
	begun    time.Time
	cpu      float64
	requests int
	records  int
	times    histogram
}

func run(wanted *order) (*answer, error) {
	l, err := newLoop(wanted)
	if err != nil {
		return nil, err
	}
	runtime.GC()
	if err := l.drive(); err != nil {
		return nil, err
	}
	return l.measured(), nil
}

// newLoop is connected, and has sent nothing yet.
func newLoop(wanted *order) (*loop, error) {
	epoll, err := syscall.EpollCreate1(0)
	if err != nil {
		return nil, err
	}
	l := &loop{order: wanted, epoll: epoll, buffer: make([]byte, 1<<20), events: make([]syscall.EpollEvent, 256)}
	for index := 0; index < wanted.Connections; index++ {
		if err := l.connect(index); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *loop) measured() *answer {
	return &answer{
		Requests: l.requests, Records: l.records, Seconds: time.Since(l.begun).Seconds(), CPU: cpuSeconds() - l.cpu,
		P50: l.times.quantile(0.50), P99: l.times.quantile(0.99), Max: float64(l.times.max) / 1e6,
	}
}

func (l *loop) connect(index int) error {
	fd, err := dial(l.order.Address)
	if err != nil {
		return err
	}
	session, err := newSession(l.order, index)
	if err != nil {
		return err
	}
	if err := session.greet(fd); err != nil {
		return err
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		return err
	}
	l.connections = append(l.connections, connection{fd: fd, session: session})
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(index)}
	return syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_ADD, fd, &event)
}

func (l *loop) drive() error {
	now := time.Now()
	l.restart(now)
	warm := now.Add(time.Duration(l.order.WarmUp * float64(time.Second)))
	end := warm.Add(time.Duration(l.order.Seconds * float64(time.Second)))
	warming, counted := l.order.Requests == 0, l.order.Requests
	if err := l.sendAll(now); err != nil {
		return err
	}
	for {
		now, err := l.turn()
		if err != nil {
			return err
		}
		switch {
		case counted > 0:
			if l.requests >= counted {
				return nil
			}
		case warming:
			if now.After(warm) {
				warming = false
				end = end.Add(now.Sub(warm))
				l.restart(now)
			}
		case now.After(end) && l.unheard == 0:
			// A server that answers with everything at once may take longer for it than the measurement should.
			return nil
		}
	}
}

func (l *loop) sendAll(now time.Time) error {
	l.answered = now
	for index := range l.connections {
		if err := l.send(index, now); err != nil {
			return err
		}
	}
	return nil
}

// turn takes what has arrived, and tells when.
func (l *loop) turn() (time.Time, error) {
	count, err := wait(l.epoll, l.events)
	if err != nil {
		return time.Time{}, err
	}
	for _, event := range l.events[:count] {
		if err := l.handle(int(event.Fd), event.Events); err != nil {
			return time.Time{}, err
		}
	}
	now := time.Now()
	if count > 0 {
		l.answered = now
	} else if now.Sub(l.answered) > patience {
		return time.Time{}, errors.New("the server has stopped answering")
	}
	return now, nil
}

func (l *loop) restart(now time.Time) {
	l.begun, l.cpu, l.requests, l.records = now, cpuSeconds(), 0, 0
	l.times = histogram{}
	l.unheard = len(l.connections)
	for index := range l.connections {
		l.connections[index].heard = false
	}
}

func (l *loop) handle(index int, events uint32) error {
	c := &l.connections[index]
	if events&syscall.EPOLLOUT != 0 {
		return l.flush(index)
	}
	count, err := transfer(syscall.SYS_READ, c.fd, l.buffer)
	if err == syscall.EAGAIN {
		return nil
	}
	if err != nil {
		return err
	}
	if count == 0 {
		return errors.New("the server has closed a connection")
	}
	records, done, err := c.session.feed(l.buffer[:count])
	if err != nil {
		return err
	}
	l.records += records
	if !done {
		return nil
	}
	if !c.heard {
		c.heard = true
		l.unheard--
	}
	now := time.Now()
	l.requests++
	l.flying--
	if some, is := c.session.(picky); !is || some.timed() {
		l.times.add(int64(now.Sub(c.started)))
	}
	return l.send(index, now)
}

func (l *loop) send(index int, now time.Time) error {
	if l.resting || l.order.Requests > 0 && l.sent >= l.order.Requests {
		return nil
	}
	l.sent++
	l.flying++
	c := &l.connections[index]
	c.started, c.unsent = now, c.session.next()
	count, err := transfer(syscall.SYS_WRITE, c.fd, c.unsent)
	if err != nil && err != syscall.EAGAIN {
		return err
	}
	c.unsent = c.unsent[count:]
	if len(c.unsent) > 0 {
		return l.watch(index, syscall.EPOLLIN|syscall.EPOLLOUT)
	}
	return nil
}

func (l *loop) flush(index int) error {
	c := &l.connections[index]
	count, err := transfer(syscall.SYS_WRITE, c.fd, c.unsent)
	if err != nil && err != syscall.EAGAIN {
		return err
	}
	c.unsent = c.unsent[count:]
	if len(c.unsent) == 0 {
		return l.watch(index, syscall.EPOLLIN)
	}
	return nil
}

func (l *loop) watch(index int, events uint32) error {
	event := syscall.EpollEvent{Events: events, Fd: int32(index)}
	return syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_MOD, l.connections[index].fd, &event)
}

// transfer reads or writes without telling the scheduler, which has nobody else to run.
func transfer(call uintptr, fd int, data []byte) (int, error) {
	for {
		count, _, errno := syscall.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)))
		switch errno {
		case 0:
			return int(count), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// wait gives up after 100 ms so that the end is noticed when nothing happens.
func wait(epoll int, events []syscall.EpollEvent) (int, error) {
	count, _, errno := syscall.RawSyscall6(
		syscall.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 100, 0, 0,
	)
	if errno == syscall.EINTR {
		return 0, nil
	}
	if errno != 0 {
		return 0, errno
	}
	return int(count), nil
}

func dial(address string) (int, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0, err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return 0, err
	}
	ip := net.ParseIP(host).To4()
	if ip == nil || !ip.IsLoopback() {
		return 0, fmt.Errorf("%s is not a loopback IPv4 address", host)
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return 0, err
	}
	if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1); err != nil {
		return 0, err
	}
	return fd, syscall.Connect(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{ip[0], ip[1], ip[2], ip[3]}})
}
