package main

import "math/bits"

// histogram counts times in nanoseconds in buckets no wider than a sixty-fourth of their value.
type histogram struct {
	counts [64 * 64]int
	total  int
	max    int64
}

func (h *histogram) add(ns int64) {
	if ns < 0 {
		ns = 0
	}
	h.counts[bucket(ns)]++
	h.total++
	if ns > h.max {
		h.max = ns
	}
}

func bucket(ns int64) int {
	if ns < 64 {
		return int(ns)
	}
	shift := bits.Len64(uint64(ns)) - 7
	return (shift+1)*64 + int(ns>>uint(shift)) - 64
}

// quantile gives milliseconds: the upper end of the bucket that holds the quantile.
func (h *histogram) quantile(share float64) float64 {
	left := int(share * float64(h.total))
	for index, count := range h.counts {
		left -= count
		if left < 0 {
			return float64(upperEnd(index)) / 1e6
		}
	}
	return float64(h.max) / 1e6
}

func upperEnd(index int) int64 {
	if index < 64 {
		return int64(index)
	}
	shift := uint(index/64 - 1)
	return (int64(index%64)+65)<<shift - 1
}
