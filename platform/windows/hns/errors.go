// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"maps"
	"slices"

	"kubeproxy/common/errtree"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// appendUnique appends err, or each error that it joins, unless errs contains the text
// already. The frontends of a port often fail for the same reason.
func appendUnique(errs []error, err error) []error {
	errtree.Walk(err, func(err error) bool {
		if errtree.Joins(err) && !isHNSError(err) {
			return true
		}
		errs = appendOne(errs, err)
		return false
	})
	return errs
}

func appendOne(errs []error, err error) []error {
	i := slices.IndexFunc(errs, func(e error) bool { return e.Error() == err.Error() })
	if i < 0 {
		return append(errs, err)
	}
	if reconcile.InForce(errs[i]) { // err may be worse
		errs[i] = err
	}
	return errs
}

func isHNSError(err error) bool {
	_, ok := err.(*Error)
	return ok
}

// portErrors returns one PortError for each Service port that failed or has limits,
// sorted by name.
func portErrors(f service.Family, all ...map[service.PortName][]error) []error {
	joined := map[service.PortName][]error{}
	for _, of := range all {
		for n, errs := range of {
			joined[n] = append(joined[n], errs...)
		}
	}
	var errs []error
	for _, n := range slices.SortedFunc(maps.Keys(joined), service.PortName.Compare) {
		errs = append(errs, &reconcile.PortError{Family: f, Name: n, Err: errors.Join(joined[n]...)})
	}
	return errs
}

// degraded wraps err in a DegradedError. It returns nil for nil.
func degraded(err error) error {
	if err == nil {
		return nil
	}
	return &reconcile.DegradedError{Err: err}
}
