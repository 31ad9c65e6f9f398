// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package scm

import (
	"errors"
	"fmt"
	"syscall"
)

// State is the state of a service, in printable form.
type State string

// The states. Services of this package cannot be paused.
const (
	Stopped  State = "stopped"
	Starting State = "starting"
	Running  State = "running"
	Stopping State = "stopping"
)

// Status is the state and configuration of an installed service.
type Status struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// PID is 0 if there is no process.
	PID uint32 `json:"pid,omitempty"`
	// ExitCode is the exit code of the last run, 0 if there was none.
	ExitCode uint32 `json:"exitCode"`
	// StartType and the fields below are empty if Windows does not return them.
	StartType string   `json:"startType,omitempty"`
	Command   string   `json:"command,omitempty"`
	Account   string   `json:"account,omitempty"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// Spec is a service to install. Windows starts it at boot, as LocalSystem.
type Spec struct {
	Name, DisplayName, Description string
	Executable                     string // the absolute path
	Args                           []string
	// DependsOn names the services that Windows starts before this one.
	DependsOn []string
}

// Driver is the access to the service control manager. Its errors are or wrap Windows
// error codes of type syscall.Errno.
type Driver interface {
	Create(Spec) error
	// Configure sets optional properties: restarts after failures, the event source.
	Configure(Spec) error
	// Delete also removes the event source.
	Delete(name string) error
	// Start and Stop return before the service has started or stopped.
	Start(name string) error
	Stop(name string) error
	Query(name string) (Status, error)
}

// The classes of errors that callers distinguish.
var (
	ErrInstalled       = errors.New("is installed already")
	ErrNotInstalled    = errors.New("is not installed")
	ErrRunning         = errors.New("is running already")
	ErrNotRunning      = errors.New("is not running")
	ErrPending         = errors.New("is still in progress")
	ErrAccessDenied    = errors.New("is refused")
	ErrEnded           = errors.New("ended while it was starting")
	ErrOtherProgram    = errors.New("is none of this program")
	ErrNotStartedBySCM = errors.New("was not started by the service manager")
	// ErrRestart, returned by Work, ends the service. The SCM then restarts it.
	ErrRestart = errors.New("asks to be started again")
)

// The Windows error codes that this package handles, see
// https://learn.microsoft.com/windows/win32/debug/system-error-codes.
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

// explanation is the meaning of an error code and its remedy.
type explanation struct {
	kind   error // one of the errors above, or nil
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
	codeMarkedForDelete: {ErrPending, "it is uninstalled, and disappears when no program uses it: close the Services console and others that show it"},
	codeInstalled:       {ErrInstalled, "uninstall it first, or choose another name with --name"},
	syscall.Errno(1051): {nil, "other services that run need it: stop those first"},
	codeRequestTimeout:  {nil, "it did not answer the service manager in time; its log and the event log may say why"},
	syscall.Errno(1058): {nil, "it is disabled: sc.exe config NAME start= auto enables it"},
	syscall.Errno(1068): {nil, "a service that it depends on does not start: look at hns, the Host Network Service"},
	syscall.Errno(1069): {nil, "its account cannot log on: want LocalSystem, as it was installed"},
	syscall.Errno(1075): {nil, "a service that it depends on is missing: hns comes with the Windows feature Containers, Install-WindowsFeature Containers"},
	syscall.Errno(1078): {ErrInstalled, "another service is shown under this name: choose another one with --name"},
	syscall.Errno(1115): {nil, "the system is shutting down"},
}

// explain returns an error with the failed command, the service, the reason and the
// remedy.
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

// hasCode reports whether err is or wraps code.
func hasCode(err error, code syscall.Errno) bool {
	got, ok := errors.AsType[syscall.Errno](err)
	return ok && got == code
}
