// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"kubeproxy/test/kit"
)

// Pages are documents, and what somebody has who types them.
type Pages struct {
	Docs, Deploy string // folders with the pages and with the kustomizations
	Chart        Chart  // Folder is an archive that knows the images
	Image        string // archive of the image
	Program      string // kube-proxy on the machine of the user
}

// typist types the commands of pages, in a folder of its own.
type typist struct {
	*Cluster
	Pages
	folder, self string
	replace      *strings.Replacer
}

// PageParts are docs/install.md from top to bottom, and the EKS part of docs/distributions.md.
var PageParts = []string{"install", "eks"}

// TypePages types parts of the pages in a cluster with kubeadm's kube-proxy.
func (c *Cluster) TypePages(ctx context.Context, p Pages, wants func(part string) bool) error {
	t := &typist{Cluster: c, Pages: p, folder: c.path("typed")}
	err := t.prepare(ctx)
	if err == nil && wants("install") {
		err = t.typeInstall(ctx)
	}
	if err == nil && wants("eks") {
		err = t.typeEKS(ctx)
	}
	return err
}

// prepare makes the folder, with the programs of the pages that are not those of the cluster.
func (t *typist) prepare(ctx context.Context) error {
	var err error
	if t.self, err = os.Executable(); err != nil {
		return err
	}
	pods4, _, _ := strings.Cut(PodCIDR, ",")
	t.replace = strings.NewReplacer(
		"HOST/TEAM/kubeproxy", t.Chart.Repository, "CHART", t.Chart.Folder, "POD_RANGE", pods4, "VERSION", t.Chart.Tag,
		" NODE ", " n1 ", " NAME ", " team ", "https://192.0.2.1:6443", Server, "https://0123456789ABCDEF.gr7.eu-central-1.eks.amazonaws.com", Server,
	)
	bin := filepath.Join(t.folder, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	var errs []error
	for _, name := range []string{"aws", "each-node", "helm", "kubectl"} {
		text, err := files.ReadFile("files/typed/" + name)
		errs = append(errs, err, os.WriteFile(filepath.Join(bin, name), text, 0o755))
	}
	for name, to := range map[string]string{
		"bin/curl": "each-node", "bin/ctr": "each-node", "bin/kube-proxy": t.Program,
		"bin/make": "/bin/true", "bin/skopeo": "/bin/true", "bin/kubeadm": "/bin/true", // what the cluster has already, or cannot do
		"kubeproxy-iptables-" + t.Chart.Tag + ".oci.tar": t.Image,
	} {
		errs = append(errs, os.Symlink(to, filepath.Join(t.folder, name)))
	}
	eks, err := files.ReadFile("files/eks.yaml")
	errs = append(errs, err, t.write("eks.yaml", string(eks)), os.CopyFS(filepath.Join(t.folder, "build", "deploy"), os.DirFS(t.Deploy)))
	file := filepath.Join("build", "deploy", "linux", "kustomization.yaml")
	text, err := os.ReadFile(filepath.Join(t.folder, file))
	errs = append(errs, err, t.write(file, strings.ReplaceAll(string(text), `newTag: "dev"`, `newTag: "`+t.Chart.Tag+`"`)))
	return errors.Join(append(errs, t.applyFile(ctx, "typed.yaml"), t.Demo(ctx))...)
}

func (t *typist) write(name, text string) error {
	file := filepath.Join(t.folder, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o600)
}

// script types a text.
func (t *typist) script(ctx context.Context, text string) error {
	ctx, stop := context.WithTimeout(ctx, 2*patience)
	defer stop()
	text = t.replace.Replace(text)
	t.progress("$ %s", strings.TrimSpace(strings.ReplaceAll(text, "\n", "\n         ")))
	var hosts []string
	for i := range t.Nodes {
		hosts = append(hosts, node(i+1))
	}
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", text)
	cmd.Dir = t.folder
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(t.folder, "bin")+":"+t.Programs+":"+os.Getenv("PATH"),
		"KUBECONFIG="+t.Kubeconfig(), "PROGRAMS="+t.Programs, "SELF="+t.self, "CLUSTER="+t.Name, "NODES="+strings.Join(hosts, " "), "KUBECACHEDIR="+t.folder,
		"HELM_CACHE_HOME="+t.path("helm"), "HELM_CONFIG_HOME="+t.path("helm"), "HELM_DATA_HOME="+t.path("helm"))
	out, err := output(cmd)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// page returns the blocks of a page, and an error if there are few: the page may look
// different from what the reader expects.
func (t *typist) page(name string, least int) ([]kit.Block, error) {
	text, err := os.ReadFile(filepath.Join(t.Docs, name))
	all := kit.Blocks(string(text))
	if err == nil && len(all) < least {
		err = fmt.Errorf("%s has %d blocks, want %d", name, len(all), least)
	}
	return all, err
}

const typeChart = "helm install kubeproxy CHART -n kube-system --set clusterCIDR=POD_RANGE\n"

// removeTeam removes the second release, as the page says for the first one.
const removeTeam = `helm get values team -n kube-system -o yaml > team.yaml
helm uninstall team -n kube-system
kubectl -n kube-system wait pod -l app.kubernetes.io/name=team-kubeproxy --for=delete --timeout=5m
helm template team CHART -n kube-system -f team.yaml --set "cleanup.linux={${NODES// /,}}" | kubectl apply -f -
kubectl -n kube-system wait pod -l app.kubernetes.io/component=cleanup --for=jsonpath='{.status.phase}'=Succeeded --timeout=5m
kubectl -n kube-system delete pod -l app.kubernetes.io/component=cleanup
`

// sections are what is done before sections of docs/install.md, so that they find what they
// expect: the page describes several ways to begin.
var sections = map[string]string{
	"The API server's address": removeTeam,
	"Check":                    typeChart,
	"Uninstall": "kubectl -n kube-system patch daemonset kube-proxy --type=merge -p '" + aside + "'\n" + typeChart +
		"kubectl -n kube-system rollout status daemonset kubeproxy\n",
}

// typeInstall types docs/install.md, but for what concerns Windows.
func (t *typist) typeInstall(ctx context.Context) error {
	all, err := t.page("install.md", 30)
	if err != nil {
		return err
	}
	section := ""
	for _, b := range all {
		if b.Section != section {
			section = b.Section
			t.progress("== %s", section)
			if err := t.begin(ctx, section); err != nil {
				return fmt.Errorf("before %s: %w", section, err)
			}
		}
		if err := t.block(ctx, b); err != nil {
			return fmt.Errorf("docs/install.md, %s: %w\n%s", section, err, b.Text)
		}
	}
	return t.nothingLeft(ctx)
}

// begin does what a section expects.
func (t *typist) begin(ctx context.Context, section string) error {
	if sections[section] == "" {
		return nil
	}
	return t.script(ctx, sections[section])
}

// block types a block of docs/install.md, waits for what the page says to wait for, and
// checks what must be true after it.
func (t *typist) block(ctx context.Context, b kit.Block) error {
	has := func(part string) bool { return strings.Contains(b.Text, part) }
	switch {
	case strings.Contains(b.Section, "Windows"), strings.HasPrefix(b.Text, "kubectl svcproxy"): // the plugin has tests of its own
		return nil
	case strings.HasPrefix(b.Text, "resources:"):
		login, err := os.ReadFile(filepath.Join(t.folder, "build/deploy/kubeconfig.conf"))
		linux, errLinux := os.ReadFile(filepath.Join(t.folder, "build/deploy/linux/linux.yaml"))
		err = errors.Join(err, errLinux, t.write("overlay/kustomization.yaml", b.Text), t.write("overlay/linux.yaml", string(linux)),
			t.write("overlay/kubeconfig.conf", strings.Replace(string(login), `server: ""`, "server: "+Server, 1)))
		if err != nil {
			return err
		}
		return t.script(ctx, "kubectl kustomize overlay | grep -c "+Server)
	case has("helm uninstall kubeproxy"):
		if err := t.awaitAlone(ctx, ""); err != nil {
			return err
		}
	}
	if err := t.script(ctx, b.Text); err != nil {
		return err
	}
	switch {
	case has("helm test"):
		return t.serves(ctx)
	case has("-e leftovers-"):
		return poll(ctx, patience, func() (bool, error) { return t.say(ctx, "mode nftables") })
	case has("nft delete table"):
		return errors.Join(t.noTables(ctx), t.serves(ctx))
	}
	return nil
}

// serves returns an error if the demo application does not answer to a pod, by its name.
func (t *typist) serves(ctx context.Context) error {
	return t.await(ctx, patience, "-n", "demo", "exec", "deployment/client", "--", "curl", "-sf", "-m", "5", "http://web/hostname")
}

// noTables returns an error if a node has a table of this proxy.
func (t *typist) noTables(ctx context.Context) error {
	for i := 1; i <= t.Nodes; i++ {
		text, err := t.onNode(ctx, i, "nft", "list", "tables")
		if err == nil && strings.Contains(text, "kube-services") {
			err = fmt.Errorf("%s still has a table of this proxy:\n%s", node(i), text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// nothingLeft returns an error if nodes have rules, or the cluster objects of the release.
func (t *typist) nothingLeft(ctx context.Context) error {
	for i := 1; i <= t.Nodes; i++ {
		if text, err := t.rules(ctx, i); err != nil || text != "" {
			return errors.Join(err, fmt.Errorf("%s has rules after the cleanup:\n%s", node(i), text))
		}
	}
	const kinds = "daemonsets,pods,controllerrevisions,configmaps,secrets,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,podmonitors,prometheusrules"
	text, err := t.kubectl(ctx, "", "get", kinds, "-A", "-l", "app.kubernetes.io/instance in (kubeproxy,team)", "-o", "name")
	if err == nil && text != "" {
		err = fmt.Errorf("objects after the release is uninstalled:\n%s", text)
	}
	return err
}

// typeEKS types what docs/distributions.md says for EKS, where add-on kube-proxy is in
// place of kubeadm's.
func (t *typist) typeEKS(ctx context.Context) error {
	t.progress("== EKS")
	err := t.kubectls(ctx,
		[]string{"-n", system, "delete", "daemonset/kube-proxy", "configmap/kube-proxy", "serviceaccount/kube-proxy", "clusterrolebinding/kubeadm:node-proxier"},
		[]string{"create", "-f", filepath.Join(t.folder, "eks.yaml")})
	if err == nil {
		err = errors.Join(t.awaitProxy(ctx, "kube-proxy"), t.serves(ctx))
	}
	if err != nil {
		return err
	}
	all, err := t.page("distributions.md", 30)
	if err != nil {
		return err
	}
	for _, b := range all {
		if b.Section != "EKS" {
			continue
		}
		switch {
		case strings.HasPrefix(b.Text, "apiServer:"):
			err = errors.Join(t.write("values.yaml", t.replace.Replace(b.Text)), t.settings(ctx, all[0].Text))
		case strings.Contains(b.Text, "create-addon"):
			err = t.goBackTo(ctx, b.Text)
		default:
			err = t.script(ctx, b.Text)
		}
		if err != nil {
			return fmt.Errorf("docs/distributions.md, EKS: %w\n%s", err, b.Text)
		}
	}
	return nil
}

// settings installs with the settings of the add-on beside the values of the page.
func (t *typist) settings(ctx context.Context, install string) error {
	if err := t.script(ctx, strings.Replace(install, "-f values.yaml", "-f more.yaml -f values.yaml", 1)); err != nil {
		return err
	}
	if err := t.awaitProxy(ctx, "kubeproxy"); err != nil {
		return err
	}
	if ok, err := t.say(ctx, "mode iptables"); !ok {
		return fmt.Errorf("want the mode of the add-on: %w", err)
	}
	return errors.Join(t.script(ctx, "helm test kubeproxy -n kube-system --logs\n"), t.serves(ctx))
}

// goBackTo types steps 2 to 4 of the way back in docs/install.md, where another command
// than kubeadm's starts kube-proxy.
func (t *typist) goBackTo(ctx context.Context, start string) error {
	all, err := t.page("install.md", 30)
	if err != nil {
		return err
	}
	for _, b := range all {
		if b.Section != "Go back" {
			continue
		}
		for _, part := range []string{"linux.mode=nftables", "helm uninstall", `"service-proxy":null`, "10249/metrics", "nft delete table"} {
			if !strings.Contains(b.Text, part) {
				continue
			}
			if part == `"service-proxy":null` {
				b.Text = start
			}
			if err := t.block(ctx, b); err != nil {
				return fmt.Errorf("%w\n%s", err, b.Text)
			}
			break
		}
	}
	return t.awaitProxy(ctx, "kube-proxy")
}

// sshPort is where the tests of Kubernetes expect the nodes of a cloud to let them log in.
const sshPort = ":22"

// allowLogin lets the tests of Kubernetes run commands on the nodes, as on those of a
// cloud, until ctx ends. It returns the variables that say how, see
// test/e2e/framework/ssh in kubernetes/kubernetes.
func (c *Cluster) allowLogin(ctx context.Context) (env []string, err error) {
	key, err := c.newKey("login")
	if err != nil {
		return nil, err
	}
	allowed, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return nil, err
	}
	for i := 1; i <= c.Nodes; i++ {
		s := newLogin(c.Machine(node(i)), allowed)
		if err := s.listen(ctx); err != nil {
			return nil, fmt.Errorf("let tests log in to %s: %w", s.machine.Name, err)
		}
	}
	return []string{"KUBE_SSH_USER=root", "KUBE_SSH_KEY_PATH=" + c.pki("login.key")}, nil
}

// login serves SSH for a machine. It runs outside of the machine, and its commands inside.
type login struct {
	machine *Machine
	config  *ssh.ServerConfig
}

// newLogin returns a server that the holder of one key may use. It has the same key, as
// the tests ask for none.
func newLogin(m *Machine, allowed ssh.Signer) *login {
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if !bytes.Equal(key.Marshal(), allowed.PublicKey().Marshal()) {
				return nil, errors.New("another key")
			}
			return nil, nil
		},
	}
	config.AddHostKey(allowed)
	return &login{m, config}
}

// listen serves on the machine's network until ctx ends.
func (s *login) listen(ctx context.Context) error {
	var l net.Listener
	err := s.machine.inside(func() (err error) {
		l, err = net.Listen("tcp", sshPort)
		return err
	})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() }) // serve ends
	go s.serve(ctx, l)
	return nil
}

func (s *login) serve(ctx context.Context, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go s.client(ctx, c)
	}
}

// client serves one connection. One that ends at once only asked whether somebody listens.
func (s *login) client(ctx context.Context, c net.Conn) {
	defer c.Close()
	_, channels, requests, err := ssh.NewServerConn(c, s.config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		if offered.ChannelType() != "session" {
			_ = offered.Reject(ssh.UnknownChannelType, "want a session") // the client has gone if this fails
			continue
		}
		if channel, requests, err := offered.Accept(); err == nil {
			go s.session(ctx, channel, requests)
		}
	}
}

// asRoot stands for sudo(8), which a machine need not have.
const asRoot = "sudo() { \"$@\"; }\n"

// session runs the one command of a session, see RFC 4254, section 6. A client that has
// gone does not need answers.
func (s *login) session(ctx context.Context, channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for r := range requests {
		var command struct{ Text string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &command) != nil {
			_ = r.Reply(false, nil)
			continue
		}
		_ = r.Reply(true, nil)
		status := s.run(ctx, channel, command.Text)
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{status}))
		return
	}
}

// run runs a command on the machine and returns its exit status.
func (s *login) run(ctx context.Context, channel ssh.Channel, command string) (status uint32) {
	cmd, err := s.machine.Command(ctx, "sh", "-c", asRoot+command)
	if err == nil {
		cmd.Stdout, cmd.Stderr = channel, channel.Stderr()
		err = cmd.Run()
	}
	if child := (*exec.ExitError)(nil); errors.As(err, &child) && child.Exited() {
		return uint32(child.ExitCode()) // the command has said why
	}
	if err != nil {
		fmt.Fprintln(channel.Stderr(), err) // it did not run, or was ended
		return 255
	}
	return 0
}
