// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import "container/heap"

// queue holds the claims to one address that another Service holds. Each operation costs
// the logarithm of their number.
type queue struct {
	list  []claim       // a heap, the next holder first
	place map[claim]int // where in list
	// again counts claims that one Service makes more than once, as for a NodePort
	// that is its healthCheckNodePort.
	again map[claim]int
}

func (q *queue) push(c claim) {
	if q.place == nil {
		q.place, q.again = map[claim]int{}, map[claim]int{}
	}
	if _, known := q.place[c]; known {
		q.again[c]++
		return
	}
	heap.Push((*queueHeap)(q), c)
}

// pop removes and returns the next holder.
func (q *queue) pop() claim {
	first := q.list[0]
	q.drop(first)
	return first
}

// drop removes c and reports whether it was there.
func (q *queue) drop(c claim) bool {
	i, known := q.place[c]
	switch {
	case !known:
		return false
	case q.again[c] > 1:
		q.again[c]--
	case q.again[c] == 1:
		delete(q.again, c)
	default:
		heap.Remove((*queueHeap)(q), i)
	}
	return true
}

// queueHeap is what container/heap sees of a queue.
type queueHeap queue

func (h *queueHeap) Len() int           { return len(h.list) }
func (h *queueHeap) Less(i, j int) bool { return compareClaims(h.list[i], h.list[j]) < 0 }

func (h *queueHeap) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.place[h.list[i]], h.place[h.list[j]] = i, j
}

func (h *queueHeap) Push(x any) {
	c := x.(claim)
	h.place[c] = len(h.list)
	h.list = append(h.list, c)
}

func (h *queueHeap) Pop() any {
	last := len(h.list) - 1
	c := h.list[last]
	h.list[last] = claim{}
	h.list = h.list[:last]
	delete(h.place, c)
	return c
}
