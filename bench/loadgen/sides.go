package main

import (
	"runtime"
	"syscall"
	"time"
)

// side is what was measured of one order: the answer for each of its turns.
type side struct {
	Turns []answer `json:"turns"`
}

// runSides carries out several orders in turns. All stay connected, and a turn ends when its last answer has come. A
// server is held while it is not its turn, so that whatever it has put off is done in its own time and not in that of
// another. Who goes first in one round goes last in the next.
func runSides(wanted *order) ([]side, error) {
	loops := make([]*loop, len(wanted.Sides))
	found := make([]side, len(loops))
	for index := range wanted.Sides {
		l, err := newLoop(&wanted.Sides[index])
		if err != nil {
			return nil, err
		}
		loops[index] = l
		found[index].Turns = make([]answer, 0, wanted.Turns)
	}
	defer signalAll(wanted.Sides, syscall.SIGCONT)
	runtime.GC()
	length := time.Duration(wanted.Seconds * float64(time.Second))
	warm := time.Now().Add(time.Duration(wanted.WarmUp * float64(time.Second)))
	for round := 0; len(found[0].Turns) < wanted.Turns || len(found[len(found)-1].Turns) < wanted.Turns; round++ {
		counts := time.Now().After(warm)
		for position := range loops {
			index := position
			if round%2 == 1 {
				index = len(loops) - 1 - position
			}
			l := loops[index]
			hold(wanted.Sides, index)
			if err := l.work(length); err != nil {
				return nil, err
			}
			if counts {
				found[index].Turns = append(found[index].Turns, *l.measured())
			}
		}
	}
	return found, nil
}

// hold lets only the server of one side go on.
func hold(sides []order, index int) {
	for _, side := range sides {
		if side.Pid != 0 && side.Pid != sides[index].Pid {
			syscall.Kill(side.Pid, syscall.SIGSTOP)
		}
	}
	if sides[index].Pid != 0 {
		syscall.Kill(sides[index].Pid, syscall.SIGCONT)
	}
}

func signalAll(sides []order, number syscall.Signal) {
	for _, side := range sides {
		if side.Pid != 0 {
			syscall.Kill(side.Pid, number)
		}
	}
}

// work sends and hears for so long, and then waits for the last answers.
func (l *loop) work(length time.Duration) error {
	now := time.Now()
	l.restart(now)
	end := now.Add(length)
	l.resting = false
	if err := l.sendAll(now); err != nil {
		return err
	}
	for now.Before(end) || l.flying > 0 {
		var err error
		if now, err = l.turn(); err != nil {
			return err
		}
		l.resting = !now.Before(end)
	}
	return nil
}
