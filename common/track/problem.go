// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/printable"
)

// Kind is the kind of object that a Problem concerns.
type Kind uint8

// The kinds. EndpointSlices count as parts of their Service.
const (
	OfService Kind = iota
	OfNode         // the own Node
	OfServiceCIDR
)

// Problem is content of the cluster that had to be left out or interpreted. It never
// stops the rest.
type Problem struct {
	Kind    Kind
	Service types.NamespacedName // of kind OfService only
	Field   string               // the API's path, such as "spec.ports[1].nodePort"
	Message string
	// Refused means that an address and port is not served because that would take it
	// from another owner. ThisNode means that other nodes may decide differently.
	Refused, ThisNode bool
}

// String returns the problem on one line, the Service first.
func (p Problem) String() string {
	where := "node"
	if p.Kind == OfService {
		where = "service " + p.Service.String()
	}
	return printable.Text(where + ": " + p.Field + ": " + p.Message)
}

func compareProblems(a, b Problem) int {
	return strings.Compare(a.String(), b.String())
}

// maxNotes bounds what the Tracker stores and reports for one object.
const maxNotes = 20

// note is a Problem whose Service is known from its container.
type note struct {
	field, message    string
	refused, thisNode bool
}

// notes collects the problems of one object.
type notes struct {
	list []note
	more int // left out of list
}

func (n *notes) add(field, format string, args ...any) {
	if len(n.list) == maxNotes {
		n.more++
		return
	}
	n.list = append(n.list, note{field: field, message: fmt.Sprintf(format, args...)})
}

// refuse adds a note about an address that is not served.
func (n *notes) refuse(field, message string, thisNode bool) {
	if len(n.list) == maxNotes {
		n.more++
		return
	}
	n.list = append(n.list, note{field, message, true, thisNode})
}

// all returns the notes. The last one sums up those that did not fit.
func (n *notes) all() []note {
	if n.more > 0 {
		return append(n.list, note{field: n.list[maxNotes-1].field, message: fmt.Sprintf("and %d more problems", n.more)})
	}
	return n.list
}

// at returns the path of element i of a list.
func at(field string, i int) string {
	return field + "[" + strconv.Itoa(i) + "]"
}

// problemsOf turns notes about an object into sorted Problems without duplicates.
func problemsOf(kind Kind, service types.NamespacedName, lists ...[]note) []Problem {
	var all []Problem
	for _, list := range lists {
		for _, n := range list {
			all = append(all, Problem{kind, service, n.field, n.message, n.refused, n.thisNode})
		}
	}
	slices.SortFunc(all, compareProblems)
	return slices.Compact(all)
}
