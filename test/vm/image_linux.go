// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// initScript is the machine's first program.
//
//go:embed init.sh
var initScript string

// programs are copied from this machine if they are installed. Those in needed must be.
var (
	needed   = []string{"bash", "busybox", "kmod", "ip", "nft", "ipset", "conntrack", "ipvsadm", "xtables-nft-multi", "xtables-legacy-multi", "setpriv"}
	optional = []string{"ss", "tc", "bridge", "sysctl", "ethtool", "tcpdump", "strace"}
)

// aliases are additional names of some programs.
func aliases() map[string]string {
	all := map[string]string{"/usr/bin/sh": "bash"}
	for _, name := range []string{"modprobe", "insmod", "rmmod", "lsmod", "depmod", "modinfo"} {
		all["/usr/sbin/"+name] = "../bin/kmod"
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, does := range []string{"", "-save", "-restore"} {
			all["/usr/sbin/"+name+does] = "xtables-nft-multi"
			all["/usr/sbin/"+name+"-nft"+does] = "xtables-nft-multi"
			all["/usr/sbin/"+name+"-legacy"+does] = "xtables-legacy-multi"
		}
	}
	return all
}

// guestFiles are files that programs read.
var guestFiles = map[string]string{
	"/etc/passwd":      "root:x:0:0:root:/root:/bin/bash\n",
	"/etc/group":       "root:x:0:\n",
	"/etc/hosts":       "127.0.0.1 localhost\n::1 localhost\n",
	"/etc/hostname":    "vm\n",
	"/etc/resolv.conf": "",
}

// copiedFiles are files of this machine that programs read, if it has them.
var copiedFiles = []string{"/etc/protocols", "/etc/services", "/etc/ethertypes", "/etc/iproute2", "/usr/share/iproute2"}

// wantedModules matches the modules of the image: those for networks, and the drivers of
// the machine's devices. Their dependencies are added.
var wantedModules = regexp.MustCompile(`^kernel/(` + strings.Join([]string{
	"net/(netfilter|ipv4|ipv6|bridge|sctp|core|sched|xfrm|8021q|llc|802|netlink|unix|packet|key)/",
	"drivers/net/(dummy|veth|tun|ifb|nlmon|vrf|net_failover|virtio_net|vxlan|geneve|macvlan|ipvlan|netdevsim)",
	"drivers/virtio/", "drivers/block/virtio_blk", "drivers/char/(virtio_console|hw_random/)", "fs/overlayfs/", "crypto/.*crc32c", "crypto/crc", "lib/",
}, "|") + `)`)

// locate finds a program as root would.
func locate(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return filepath.EvalSymlinks(found)
		}
	}
	return "", fmt.Errorf("%w: %s", ErrMissing, name)
}

// base is the part of the image that all commands share.
func base(k kernel) (tree, error) {
	t := tree{}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run/lock", "/tmp", "/root", "/var/log", "/usr/local/bin"} {
		t[dir] = entry{dir: true}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		t["/"+name] = entry{link: "usr/" + name}
		t["/usr/"+name] = entry{dir: true}
	}
	t["/var/run"], t["/var/tmp"] = entry{link: "/run"}, entry{link: "/tmp"}
	t["/init"] = entry{text: initScript, exec: true}
	for name, text := range guestFiles {
		t[name] = entry{text: text}
	}
	for _, file := range copiedFiles {
		if err := t.add(file, file); err != nil && !os.IsNotExist(err) {
			return nil, err
		}
	}
	if err := t.addPrograms(); err != nil {
		return nil, err
	}
	return t, t.addModules(k)
}

func (t tree) addPrograms() error {
	for _, name := range slices.Concat(needed, optional) {
		file, err := locate(name)
		if err != nil && slices.Contains(optional, name) {
			continue
		}
		if err == nil {
			err = t.addProgram(file, file)
		}
		if err != nil {
			return err
		}
	}
	for name, to := range aliases() {
		t[name] = entry{link: to}
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err == nil && len(extensions) == 0 {
		err = fmt.Errorf("%w: the extensions of iptables", ErrMissing)
	}
	for _, file := range extensions {
		if err == nil {
			err = t.addProgram(file, file)
		}
	}
	if err != nil {
		return err
	}
	return t.addBusybox()
}

// addBusybox adds each busybox command for which there is no program of its own.
func (t tree) addBusybox() error {
	busybox, err := locate("busybox")
	if err != nil {
		return err
	}
	names, err := output(exec.Command(busybox, "--list"))
	for name := range strings.FieldsSeq(names) {
		if _, ok := t["/usr/sbin/"+name]; ok {
			continue
		}
		if _, ok := t["/usr/bin/"+name]; !ok {
			t["/usr/bin/"+name] = entry{link: "busybox"}
		}
	}
	return err
}

// library matches a path in the output of ldd(1).
var library = regexp.MustCompile(`/\S+`)

// addProgram adds a program and its shared libraries.
func (t tree) addProgram(from, to string) error {
	if err := t.add(from, to); err != nil {
		return err
	}
	text, err := exec.Command("ldd", from).Output()
	if err != nil {
		return nil // it needs none
	}
	for _, file := range library.FindAllString(string(text), -1) {
		if _, ok := t[guestPath(file)]; ok || strings.HasSuffix(file, ":") {
			continue
		}
		if err := t.add(file, file); err != nil {
			return err
		}
	}
	return nil
}

// addModules adds the modules of wantedModules and their dependencies.
func (t tree) addModules(k kernel) error {
	f, err := os.Open(filepath.Join(k.modules(), "modules.dep"))
	if err != nil {
		return err
	}
	defer f.Close()
	in := filepath.Join("/usr/lib/modules", k.release)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// The files after the colon are all dependencies, including indirect ones, see
		// modules.dep(5).
		module, needs, ok := strings.Cut(lines.Text(), ":")
		if !ok || !wantedModules.MatchString(module) {
			continue
		}
		for _, name := range append(strings.Fields(needs), module) {
			t[filepath.Join(in, name)] = entry{from: filepath.Join(k.modules(), name)}
		}
	}
	lists, err := filepath.Glob(filepath.Join(k.modules(), "modules.*"))
	for _, file := range lists {
		t[filepath.Join(in, filepath.Base(file))] = entry{from: file}
	}
	return err
}

// key identifies the whole content of t: a changed program or script leads to another
// image.
func (t tree) key() (string, error) {
	h := sha256.New()
	for _, name := range t.sorted() {
		e := t[name]
		fmt.Fprintf(h, "%s %s %s %v %v ", name, e.text, e.link, e.exec, e.dir)
		if e.from == "" || e.dir {
			continue
		}
		info, err := os.Stat(e.from)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d %d\n", e.from, info.Size(), info.ModTime().UnixNano())
	}
	return fmt.Sprintf("%x", h.Sum(nil))[:16], nil
}

// tree holds the content of an image, by path in the machine.
type tree map[string]entry

// entry is a file of this machine, a text, or a link.
type entry struct {
	from string // path of a file on this machine
	text string
	link string // target of a symbolic link
	exec bool
	dir  bool
}

// guestPath returns the path in the machine for a path on this machine. Both have a
// merged /usr. An old path such as /bin, as a folder of its own, would hide the link at
// its place.
func guestPath(path string) string {
	for _, old := range []string{"/bin/", "/sbin/", "/lib/", "/lib64/"} {
		if strings.HasPrefix(path, old) {
			return "/usr" + path
		}
	}
	return path
}

// sorted returns the paths in t.
func (t tree) sorted() []string { return slices.Sorted(maps.Keys(t)) }

// add adds a file of this machine, or a folder with all its content, to t.
func (t tree) add(from, to string) error {
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		if d.Type() == fs.ModeSymlink && file != from {
			return t.add(file, path.Join(to, rest))
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		t[guestPath(path.Join(to, rest))] = entry{from: file, exec: info.Mode()&0o111 != 0, dir: d.IsDir()}
		return nil
	})
}

// write writes t as a cpio archive of format newc, with the folders of each entry. The
// kernel unpacks it, see
// https://docs.kernel.org/driver-api/early-userspace/buffer-format.html
func (t tree) write(out io.Writer) error {
	all := maps.Clone(t)
	for name := range t {
		for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = entry{dir: true}
			}
		}
	}
	w := &archive{out: bufio.NewWriterSize(out, 1<<20)}
	for _, name := range all.sorted() {
		if err := w.entry(strings.TrimPrefix(name, "/"), all[name]); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	w.header("TRAILER!!!", 0, 0)
	return cmp.Or(w.err, w.out.Flush())
}

// archive writes entries one after the other.
type archive struct {
	out    *bufio.Writer
	number int
	err    error
}

func (w *archive) entry(name string, e entry) error {
	switch {
	case e.dir:
		w.header(name, unixDir, 0)
		return w.err
	case e.link != "":
		w.header(name, unixLink, int64(len(e.link)))
		return w.body(strings.NewReader(e.link), int64(len(e.link)))
	}
	mode := unixFile
	if e.exec {
		mode |= 0o111
	}
	if e.from == "" {
		w.header(name, mode, int64(len(e.text)))
		return w.body(strings.NewReader(e.text), int64(len(e.text)))
	}
	f, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	w.header(name, mode, info.Size())
	return w.body(f, info.Size())
}

// Kinds of files, with their permissions.
const (
	unixFile = 0o100644
	unixDir  = 0o040755
	unixLink = 0o120777
)

// header writes the part before the content: thirteen numbers and the name, padded to a
// multiple of four bytes.
func (w *archive) header(name string, mode int, size int64) {
	w.number++
	text := "070701"
	for _, n := range []int64{int64(w.number), int64(mode), 0, 0, 1, 0, size, 0, 0, 0, 0, int64(len(name) + 1), 0} {
		text += fmt.Sprintf("%08X", n)
	}
	text += name + "\x00"
	_, err := w.out.WriteString(text + padding(int64(len(text))))
	w.err = cmp.Or(w.err, err)
}

func (w *archive) body(content io.Reader, size int64) error {
	n, err := io.Copy(w.out, content)
	if err == nil && n != size {
		err = fmt.Errorf("it had %d bytes and then %d", size, n)
	}
	_, perr := w.out.WriteString(padding(size))
	w.err = cmp.Or(w.err, err, perr)
	return w.err
}

func padding(size int64) string { return strings.Repeat("\x00", int(-size&3)) }

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
