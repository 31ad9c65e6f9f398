// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

// lacking is the Driver of a system without what the layer needs. Nothing of the layer can
// be in such a kernel.
type lacking struct{ reason error }

func (l lacking) Adopt() (*Memory, error)         { return nil, nil }
func (l lacking) Build(int, int) (*Memory, error) { return nil, l.reason }
func (l lacking) Activate() error                 { return l.reason }
func (l lacking) Attached() error                 { return nil }
func (l lacking) Moved() (string, error)          { return "", l.reason }
func (l lacking) Follow() error                   { return l.reason }
func (l lacking) Barrier() error                  { return l.reason }
func (l lacking) Inspect() (*State, error)        { return nil, l.reason }
func (l lacking) Installed() (bool, error)        { return false, nil }
func (l lacking) Remove() error                   { return nil }
func (l lacking) Release()                        {}
func (l lacking) Taken() (uint64, error)          { return 0, nil }
