// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

// faults are the faults that were reported and still exist, in their order.
type faults struct {
	objects []string
	errs    map[string]error // by object
}

// report reports the difference between problems and old, and returns the new faults.
// Problems of one object make one fault. to may be nil.
func (old faults) report(problems []problem, to func(Fault)) faults {
	byObject := map[string][]error{}
	var now faults
	for _, p := range problems {
		if byObject[p.object] == nil {
			now.objects = append(now.objects, p.object)
		}
		byObject[p.object] = append(byObject[p.object], p.err)
	}
	now.errs = make(map[string]error, len(byObject))
	for object, errs := range byObject {
		now.errs[object] = joinLine(errs)
	}
	if to == nil {
		return now
	}
	for _, object := range old.objects {
		if now.errs[object] == nil {
			to(Fault{Object: object})
		}
	}
	for _, object := range now.objects {
		err, before := now.errs[object], old.errs[object]
		if before == nil || before.Error() != err.Error() {
			to(Fault{object, err})
		}
	}
	return now
}
