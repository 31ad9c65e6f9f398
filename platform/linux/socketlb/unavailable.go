// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

// unavailable is the Driver of a system without what the layer needs. Nothing of the layer
// can be in such a kernel.
type unavailable struct{ reason error }

func (l unavailable) Adopt() (*Memory, error)         { return nil, nil }
func (l unavailable) Build(int, int) (*Memory, error) { return nil, l.reason }
func (l unavailable) Activate() error                 { return l.reason }
func (l unavailable) Attached() error                 { return nil }
func (l unavailable) Moved() (string, error)          { return "", l.reason }
func (l unavailable) Follow() error                   { return l.reason }
func (l unavailable) Barrier() error                  { return l.reason }
func (l unavailable) Inspect() (*State, error)        { return nil, l.reason }
func (l unavailable) Others() (Others, error)         { return Others{}, nil }
func (l unavailable) Evict() error                    { return nil }
func (l unavailable) Installed() (bool, error)        { return false, nil }
func (l unavailable) Remove() error                   { return nil }
func (l unavailable) Release()                        {}
func (l unavailable) Taken() (Taken, error)           { return Taken{}, nil }
