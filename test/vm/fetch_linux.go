// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// metapackage depends on the latest kernel of a release, in the variant for virtual
// machines. That variant is small, and has IPVS, SCTP and nftables.
const metapackage = "linux-image-cloud-amd64"

// kernelPackage matches the packages that make up a kernel.
var kernelPackage = regexp.MustCompile(`^linux-(image|binary|modules)-.*cloud-amd64$`)

// apt runs apt's programs with package lists of their own. It uses the mirrors and the
// keys that this machine is configured for, see sources.list(5).
type apt struct {
	folder string
	out    io.Writer
}

// fetch downloads a kernel and unpacks it to a folder, which must not exist.
func (a apt) fetch(ctx context.Context, name, folder string) error {
	fmt.Fprintf(a.out, "fetching the kernel %s (half a minute)\n", name)
	suites, err := a.sources(ctx, releases[name])
	if err != nil {
		return err
	}
	err = errors.Join(
		os.MkdirAll(filepath.Join(a.folder, "state/lists/partial"), 0o755),
		os.MkdirAll(filepath.Join(a.folder, "cache/archives/partial"), 0o755),
		os.WriteFile(filepath.Join(a.folder, "sources.list"), []byte(suites), 0o644))
	if err == nil {
		_, err = a.run(ctx, "apt-get", "-q", "update")
	}
	if err != nil {
		return err
	}
	packages, err := a.packages(ctx)
	if err == nil {
		_, err = a.run(ctx, "apt-get", append([]string{"-q", "download"}, packages...)...)
	}
	if err != nil {
		return err
	}
	return a.unpack(ctx, folder)
}

// sources returns lines of sources.list for suites. Their addresses are those of this
// machine's suites with the same label.
func (a apt) sources(ctx context.Context, suites []suite) (string, error) {
	text, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(LABEL)|$(SITE)", "Created-By: Packages").Output()
	if err != nil {
		return "", fmt.Errorf("%w; ask apt for its sources: %w", ErrMissing, err)
	}
	at := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if label, site, ok := strings.Cut(strings.TrimSpace(line), "|"); ok && at[label] == "" {
			at[label] = site
		}
	}
	var list strings.Builder
	for _, s := range suites {
		if at[s.archive] == "" {
			return "", fmt.Errorf("%w; apt knows no source with the label %s, which has the kernel (before the first apt-get update it knows none)", ErrMissing, s.archive)
		}
		fmt.Fprintf(&list, "deb %s %s main\n", at[s.archive], s.name)
	}
	return list.String(), nil
}

// run runs one of apt's programs in the folder and returns its output.
func (a apt) run(ctx context.Context, program string, args ...string) (string, error) {
	options := []string{
		"-o", "Dir::Etc::sourcelist=" + filepath.Join(a.folder, "sources.list"), "-o", "Dir::Etc::sourceparts=-",
		"-o", "Dir::State=" + filepath.Join(a.folder, "state"), "-o", "Dir::State::status=/dev/null",
		"-o", "Dir::Cache=" + filepath.Join(a.folder, "cache"), "-o", "APT::Sandbox::User=",
		"-o", "Acquire::Languages=none", "-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
	}
	cmd := exec.CommandContext(ctx, program, append(options, args...)...)
	cmd.Dir = a.folder
	return output(cmd)
}

// output runs a program and returns its standard output; its standard error becomes part
// of the error.
func output(cmd *exec.Cmd) (string, error) {
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	text, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, complaints.String())
	}
	return string(text), err
}

// packages returns those that make up the latest kernel.
func (a apt) packages(ctx context.Context) ([]string, error) {
	var found []string
	for ask := []string{metapackage}; len(ask) > 0; ask = ask[1:] {
		text, err := a.run(ctx, "apt-cache", "depends", ask[0])
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: ")
			if ok && kernelPackage.MatchString(name) && !slices.Contains(found, name) {
				found = append(found, name)
				ask = append(ask, name)
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s depends on no kernel", metapackage)
	}
	return found, nil
}

// unpack unpacks the packages in a's folder, and generates the list of module
// dependencies. apt has verified their signed checksums.
func (a apt) unpack(ctx context.Context, folder string) error {
	packages, err := filepath.Glob(filepath.Join(a.folder, "*.deb"))
	for _, p := range packages {
		if err == nil {
			_, err = output(exec.CommandContext(ctx, "dpkg-deb", "-x", p, folder))
		}
	}
	if err != nil {
		return err
	}
	if err := merge(folder); err != nil {
		return err
	}
	if err := decompress(ctx, folder); err != nil {
		return err
	}
	k, err := openKernel(folder)
	if err == nil {
		_, err = output(exec.CommandContext(ctx, "/sbin/depmod", "-b", filepath.Join(folder, "usr"), k.release))
	}
	return err
}

// merge moves modules to their place in newer packages, below usr.
func merge(folder string) error {
	old, modern := filepath.Join(folder, "lib/modules"), filepath.Join(folder, "usr/lib/modules")
	if _, err := os.Stat(old); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(os.MkdirAll(filepath.Dir(modern), 0o755), os.Rename(old, modern))
}

// decompress decompresses modules here, as the virtual machine is slow.
func decompress(ctx context.Context, folder string) error {
	for ending, program := range map[string]string{".ko.xz": "xz", ".ko.zst": "zstd"} {
		var files []string
		err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ending) {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return err
		}
		for some := range slices.Chunk(files, 500) {
			args := append([]string{"-dqf"}, some...)
			if program == "zstd" {
				args = append([]string{"--rm"}, args...)
			}
			if _, err := output(exec.CommandContext(ctx, program, args...)); err != nil {
				return err
			}
		}
	}
	return nil
}
