// The load generator of `make bench-http` and `make bench-live`: one thread, one epoll loop, as many connections as
// asked, one request on its way on each, or a row of them. It speaks HTTP, WebSocket, Redis and NATS through the same loop, so that a difference
// between two servers is not a difference between two clients. Nothing is allocated while it measures, and the
// collector is off.
//
// It reads one JSON order from its input and prints one JSON answer. It knows no product: what to send for an append
// is part of the order; only reads, which follow a cursor, are made here.
//
// An order of several sides measures them in turns of a moment each: a machine that is fast in one second and slow in
// the next is so for all of them, and what one moment says of two servers is worth more than what two minutes say.
//
// A record is counted by a byte that every payload holds exactly once and nothing else holds: the answers of three
// protocols are counted alike and at memory speed, and a server that leaves records out is found out.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
)

// order is what the benchmark wants measured.
type order struct {
	Address     string   `json:"address"` // IPv4:port
	Protocol    string   `json:"protocol"`
	Connections int      `json:"connections"`
	WarmUp      float64  `json:"warm_up_s"`
	Seconds     float64  `json:"seconds"`
	Requests    int      `json:"requests"` // Not 0: stop after as many, however long it takes.
	Request     string   `json:"request"`  // An append, complete with its framing; empty means reads.
	Others      []string `json:"others"`   // More appends, sent in turns with the first.
	Records     int      `json:"records"`  // How many records an append carries, or all that are sent at once.
	Answers     int      `json:"answers"`  // How many answers what is sent at once has; 0 is one.
	Name        string   `json:"name"`     // What to read: a path, a key, a stream.
	Limit       int      `json:"limit"`    // How many records a read asks for.
	Total       int      `json:"total"`    // How many records one pass over everything must find.
	Sides       []order  `json:"sides"`    // Not empty: orders that are carried out in turns, so many times.
	Turns       int      `json:"turns"`
	Pid         int      `json:"pid"` // Of a side's server, which is held between its turns; 0 holds nobody.
}

// answer is what was measured between the end of the warm-up and the end.
type answer struct {
	Requests int     `json:"requests"`
	Records  int     `json:"records"`
	Seconds  float64 `json:"seconds"`
	CPU      float64 `json:"cpu_s"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	Max      float64 `json:"max_ms"`
}

const marker = '~'

// A server that is silent for this long has failed.
const patience = 120 * time.Second

func main() {
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	raw, err := io.ReadAll(os.Stdin)
	if err != nil {
		fail(err)
	}
	var wanted order
	if err := json.Unmarshal(raw, &wanted); err != nil {
		fail(err)
	}
	var measured any
	switch {
	case len(wanted.Sides) > 0:
		measured, err = runSides(&wanted)
	case wanted.Protocol == "live":
		measured, err = runLive(raw)
	default:
		measured, err = run(&wanted)
	}
	if err != nil {
		fail(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(measured); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "loadgen:", err)
	os.Exit(1)
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}
