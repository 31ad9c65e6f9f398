// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/common/document"
	"kubeproxy/common/files"
	"kubeproxy/config"
)

// apiClient is the way to the API server, if the configuration has one.
type apiClient struct {
	to   *rest.Config
	err  error  // why there is none
	file string // the kubeconfig, empty for none
}

func newAPIClient(c *config.Config, version string) *apiClient {
	to, err := agent.KubeClient(c, version).Config()
	return &apiClient{to, err, c.ClientConnection.Kubeconfig}
}

// secrets returns what gives access to the API server.
func (a *apiClient) secrets() *Secrets {
	s := &Secrets{}
	for _, secret := range inKubeconfig(a.file) {
		s.Add(secret)
	}
	if a.err != nil {
		return s
	}
	tls := a.to.TLSClientConfig
	for _, secret := range [][]byte{
		[]byte(a.to.BearerToken), []byte(a.to.Password), tls.KeyData, tls.CertData, tls.CAData,
		content(a.to.BearerTokenFile), content(tls.KeyFile), content(tls.CertFile), content(tls.CAFile),
	} {
		s.Add(secret)
	}
	return s
}

// inKubeconfig returns the secrets of all users of a kubeconfig, also of one that cannot
// be used.
func inKubeconfig(path string) [][]byte {
	var file struct {
		Clusters []struct{ Cluster map[string]any }
		Users    []struct{ User map[string]any }
	}
	if yaml.Unmarshal(content(path), &file) != nil {
		return nil
	}
	var all [][]byte
	add := func(fields map[string]any, names ...string) {
		for _, name := range names {
			if text, is := fields[name].(string); is {
				all = append(all, []byte(text))
			}
		}
	}
	for _, u := range file.Users {
		add(u.User, "token", "password", "client-key-data", "client-certificate-data")
	}
	for _, c := range file.Clusters {
		add(c.Cluster, "certificate-authority-data")
	}
	return all
}

// content returns what a file holds, nothing if it cannot be read.
func content(path string) []byte {
	if path == "" {
		return nil
	}
	text, _ := os.ReadFile(path)
	return text
}

// mostEvents bounds how many Events are read.
const mostEvents = "500"

// events reads the Events that service proxies reported. The rights of the proxy itself
// do not include that.
func (a *apiClient) events(ctx context.Context, w io.Writer) error {
	if a.err != nil {
		return NotHere("there is no API server to ask: " + a.err.Error())
	}
	c := rest.CopyConfig(a.to)
	c.APIPath, c.GroupVersion = "/api", &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return fmt.Errorf("set up the API client: %w", err)
	}
	text, err := client.Get().Resource("events").Param("fieldSelector", "reportingComponent=kube-proxy").Param("limit", mostEvents).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	switch {
	case apierrors.IsForbidden(err):
		return NotHere("the user of the kubeconfig may not list them: add the output of kubectl get events -A --field-selector reportingComponent=kube-proxy")
	case err != nil:
		return fmt.Errorf("list Events: %w", err)
	}
	var list any
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("list Events: %w", err)
	}
	return document.WriteJSON(w, list)
}

const (
	// mostLog bounds what is read of each log file, from its end.
	mostLog = 4 << 20
	// mostLogs bounds what is read of all together, which get equal shares.
	mostLogs = 12 << 20
)

// logPart is the part with all logs. The list of contents names them.
func (c *collector) logPart() Part {
	details := func() string { return strings.Join(c.logs, ", ") }
	return Part{Name: "log.txt", What: "the last lines of the log", Tail: true, Collect: c.log, Details: details}
}

// log writes the end of each log file that is found, the newest last.
func (c *collector) log(ctx context.Context, w io.Writer) error {
	var errs []error
	found, times := []string{}, map[string]time.Time{}
	for _, path := range c.logFiles() {
		info, err := os.Stat(path)
		switch {
		case err == nil && times[path].IsZero():
			found, times[path] = append(found, path), info.ModTime()
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	slices.SortStableFunc(found, func(a, b string) int { return times[a].Compare(times[b]) })
	share := int64(min(mostLog, mostLogs/max(len(found), 1)))
	for _, path := range found {
		if err := writeEnd(w, path, share); err != nil {
			errs = append(errs, err)
			continue
		}
		c.logs = append(c.logs, path)
	}
	journal, err := writeJournal(ctx, w)
	if journal {
		c.logs = append(c.logs, "journal of the unit kube-proxy")
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	if len(c.logs) == 0 {
		return NotHere("no log file was found: name it with --log-file, or add the output of kubectl logs")
	}
	return nil
}

// logFiles returns where the log may be.
func (c *collector) logFiles() []string {
	namespace := "kube-system"
	if text := strings.TrimSpace(string(content("/var/run/secrets/kubernetes.io/serviceaccount/namespace"))); text != "" {
		namespace = text
	}
	paths := slices.DeleteFunc(slices.Clone(c.LogFiles), func(path string) bool { return path == "" })
	for _, pattern := range logPatterns(namespace) {
		found, _ := filepath.Glob(pattern) // the patterns are valid
		paths = append(paths, found...)
	}
	return paths
}

// writeEnd writes the end of a file.
func writeEnd(w io.Writer, path string, most int64) error {
	if err := files.Check(path, math.MaxInt64); err != nil { // a pipe would block
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "==> %s, %d bytes <==\n", path, info.Size()); err != nil {
		return err
	}
	if skip := info.Size() - most; skip > 0 {
		if _, err := f.Seek(skip, io.SeekStart); err != nil {
			return err
		}
	}
	_, err = io.Copy(w, io.LimitReader(f, most))
	return err
}
