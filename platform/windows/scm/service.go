// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package scm

import (
	"errors"
	"fmt"
	"syscall"
)

// State is what a service is doing, in words for people.
type State string

// The states. A service of ours cannot be paused.
const (
	Stopped  State = "stopped"
	Starting State = "starting"
	Running  State = "running"
	Stopping State = "stopping"
)

// Status is what is known of an installed service.
type Status struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// PID is 0 unless there is a process.
	PID uint32 `json:"pid,omitempty"`
	// ExitCode is of the last run, 0 also where there was none.
	ExitCode uint32 `json:"exitCode"`
	// StartType is empty where the manager does not tell, as are the others.
	StartType string   `json:"startType,omitempty"`
	Command   string   `json:"command,omitempty"`
	Account   string   `json:"account,omitempty"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// Spec is a service to install. It starts with the system, as SYSTEM.
type Spec struct {
	Name, DisplayName, Description string
	Executable                     string // its whole path
	Args                           []string
	// DependsOn names services that are started before.
	DependsOn []string
}

// Driver is the service control manager. Its errors are or wrap the numbers
// that Windows gives.
type Driver interface {
	Create(Spec) error
	// Configure sets what a service also works without: restarts after
	// failures, its place in the order of start, the source of its events.
	Configure(Spec) error
	// Delete also removes the source of its events.
	Delete(name string) error
	// Start and Stop do not wait for the end of what they begin.
	Start(name string) error
	Stop(name string) error
	Query(name string) (Status, error)
}

// The answers that callers tell apart.
var (
	ErrInstalled       = errors.New("is installed already")
	ErrNotInstalled    = errors.New("is not installed")
	ErrRunning         = errors.New("is running already")
	ErrNotRunning      = errors.New("is not running")
	ErrPending         = errors.New("is still on its way")
	ErrAccessDenied    = errors.New("is refused")
	ErrEnded           = errors.New("ended while it was starting")
	ErrOtherProgram    = errors.New("is none of this program")
	ErrNotStartedBySCM = errors.New("was not started by the service manager")
	// ErrRestart, from the work of a service, ends it to be started again.
	ErrRestart = errors.New("asks to be started again")
)

// The numbers of Windows that are acted on.
const (
	codeAccessDenied    = syscall.Errno(5)
	codeRequestTimeout  = syscall.Errno(1053)
	codeDatabaseLocked  = syscall.Errno(1055)
	codeRunning         = syscall.Errno(1056)
	codeNotInstalled    = syscall.Errno(1060)
	codeCannotAccept    = syscall.Errno(1061)
	codeNotRunning      = syscall.Errno(1062)
	codeNotStartedBySCM = syscall.Errno(1063)
	codeMarkedForDelete = syscall.Errno(1072)
	codeInstalled       = syscall.Errno(1073)
)

// explanation is what a number means and what to do about it.
type explanation struct {
	kind   error // one of the above, or nil
	remedy string
}

var explanations = map[syscall.Errno]explanation{
	codeAccessDenied:    {ErrAccessDenied, "do this as an administrator, in a console that was started with \"Run as administrator\""},
	codeDatabaseLocked:  {ErrPending, "the service manager is busy with other services; try again"},
	codeRunning:         {ErrRunning, "to have it read its settings again, stop it first"},
	codeNotInstalled:    {ErrNotInstalled, "kube-proxy service install does that; --name if it has another name"},
	codeCannotAccept:    {ErrPending, "it is starting or stopping; try again"},
	codeNotRunning:      {ErrNotRunning, "kube-proxy service start starts it"},
	codeNotStartedBySCM: {ErrNotStartedBySCM, "start it with kube-proxy service start, or leave --windows-service and windowsRunAsService out"},
	codeMarkedForDelete: {ErrPending, "it is uninstalled and goes once all programs have let go of it: close the Services console and others that show it"},
	codeInstalled:       {ErrInstalled, "uninstall it first, or choose another name with --name"},
	syscall.Errno(1051): {nil, "other services that run need it: stop those first"},
	codeRequestTimeout:  {nil, "it did not answer the service manager in time; its log and the event log may tell why"},
	syscall.Errno(1058): {nil, "it is disabled: sc.exe config NAME start= auto enables it"},
	syscall.Errno(1068): {nil, "a service that it depends on does not start: look at hns, the Host Network Service"},
	syscall.Errno(1069): {nil, "its account cannot log on: want LocalSystem, as it was installed"},
	syscall.Errno(1075): {nil, "a service that it depends on is not there: hns comes with the Windows feature Containers, Install-WindowsFeature Containers"},
	syscall.Errno(1078): {ErrInstalled, "another service is shown under this name: choose another one with --name"},
	syscall.Errno(1115): {nil, "the system is shutting down"},
}

// explain says what was to be done with which service, why it was not, and
// what to do about that.
func explain(doing, name string, err error) error {
	if err == nil {
		return nil
	}
	code, known := errors.AsType[syscall.Errno](err)
	a, explained := explanations[code]
	switch {
	case !known || !explained:
		return fmt.Errorf("%s service %s: %w", doing, name, err)
	case a.kind == nil:
		return fmt.Errorf("%s service %s: %w; %s", doing, name, err, a.remedy)
	}
	return fmt.Errorf("%s service %s: %w: %s", doing, name, a.kind, a.remedy)
}

// hasCode reports that err is or wraps the number code.
func hasCode(err error, code syscall.Errno) bool {
	got, ok := errors.AsType[syscall.Errno](err)
	return ok && got == code
}
