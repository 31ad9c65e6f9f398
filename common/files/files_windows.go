// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
)

// private is the descriptor of a folder whose files only SYSTEM and Administrators may use, and which inherits nothing. See
// https://learn.microsoft.com/windows/win32/secauthz/security-descriptor-string-format.
const private = "O:BAG:SYD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"

// MkdirPrivate makes the folder dir, and those above it, if they are missing. Windows ignores the permissions of
// os.Mkdir, and lets every user make files in a new folder of ProgramData, so dir gets an access list of its own.
func MkdirPrivate(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	sd, err := windows.SecurityDescriptorFromString(private)
	if err != nil {
		return err
	}
	path, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return err
	}
	attributes := &windows.SecurityAttributes{SecurityDescriptor: sd}
	attributes.Length = uint32(unsafe.Sizeof(*attributes))
	if err := windows.CreateDirectory(path, attributes); err != nil && !errors.Is(err, fs.ErrExist) {
		return &os.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	return nil
}

// Protect is MkdirPrivate for the program's own folder: if others may write to it, that ends.
func Protect(dir string) error {
	if err := MkdirPrivate(dir); err != nil {
		return err
	}
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
		return errors.Join(err, fmt.Errorf("%s leads elsewhere: want a folder", dir))
	}
	writers, err := Writers(dir)
	if err != nil || len(writers) == 0 {
		return err
	}
	sd, err := windows.SecurityDescriptorFromString(private)
	if err != nil {
		return err
	}
	owner, _, err := sd.Owner()
	if err != nil {
		return err
	}
	dacl, _, err := sd.DACL()
	if err != nil {
		return err
	}
	const what = windows.OWNER_SECURITY_INFORMATION | windows.DACL_SECURITY_INFORMATION | windows.PROTECTED_DACL_SECURITY_INFORMATION
	if err := windows.SetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, what, owner, nil, dacl, nil); err != nil {
		return fmt.Errorf("take write access to %s from %s: %w", dir, strings.Join(writers, ", "), err)
	}
	return nil
}

// trusted are as good writers as this program: SYSTEM, Administrators, the installer of Windows.
var trusted = []string{"S-1-5-18", "S-1-5-32-544", "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"}

// writing are the rights with which one can change a file or folder, or who may.
const writing = windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | windows.FILE_WRITE_EA | fileDeleteChild | windows.DELETE |
	windows.WRITE_DAC | windows.WRITE_OWNER | windows.GENERIC_WRITE | windows.GENERIC_ALL

// fileDeleteChild is FILE_DELETE_CHILD.
const fileDeleteChild = 0x40

// Writers names the accounts that may change the file or folder path, besides administrators, the system and the
// account of this program. An owner may give itself every right.
func Writers(path string) ([]string, error) {
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return nil, &os.PathError{Op: "read who may write", Path: path, Err: err}
	}
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, err
	}
	return writersIn(sd, append([]string{user.User.Sid.String()}, trusted...))
}

// writersIn is Writers for a descriptor.
func writersIn(sd *windows.SECURITY_DESCRIPTOR, trusted []string) ([]string, error) {
	var all []string
	add := func(sid *windows.SID) {
		if !slices.Contains(trusted, sid.String()) {
			all = append(all, nameOf(sid))
		}
	}
	if owner, _, err := sd.Owner(); err == nil && owner != nil {
		add(owner)
	}
	dacl, _, err := sd.DACL()
	if err != nil && !errors.Is(err, windows.ERROR_OBJECT_NOT_FOUND) {
		return nil, err
	}
	if dacl == nil { // no list at all: all access
		return append(all, "everyone"), nil
	}
	for i := range uint32(dacl.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(dacl, i, &ace); err != nil {
			return nil, err
		}
		if ace.Header.AceType == windows.ACCESS_ALLOWED_ACE_TYPE && ace.Header.AceFlags&windows.INHERIT_ONLY_ACE == 0 && ace.Mask&writing != 0 {
			add((*windows.SID)(unsafe.Pointer(&ace.SidStart)))
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// nameOf returns the name of an account, or its identifier if it has none.
func nameOf(sid *windows.SID) string {
	account, domain, _, err := sid.LookupAccount("")
	switch {
	case err != nil:
		return sid.String()
	case domain == "":
		return account
	}
	return domain + `\` + account
}

func checkName(path string) error { return checkWindowsName(path) }

func openNonblocking(path string) (*os.File, error) { return os.Open(path) }

func checkNotKernelFile(*os.File) error { return nil }
