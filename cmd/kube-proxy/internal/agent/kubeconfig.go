// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"time"

	"kubeproxy/common/condition"
	filewatch "kubeproxy/common/files"
	"kubeproxy/common/kubeclient"
	"kubeproxy/common/printable"
	"kubeproxy/common/source"
)

// apiSource reads an API server, and can change to what another kubeconfig names.
type apiSource struct {
	*source.APIServer
	client  *kubeclient.Options
	outages *kubeclient.Outages
	key     string // of the kubeconfig in use, as in filewatch.Content
	server  string // that it names
}

const (
	// connectTimeout bounds the wait for the first answer of another API server.
	connectTimeout = 10 * time.Second
	// maxConnectPause is the longest pause before a kubeconfig that stays the same is tried again. Every node of
	// a cluster does so.
	maxConnectPause = time.Minute
)

// kubeconfig follows the file with the connection to the API server. The connection in use stays until that
// of a changed file works. The tokens, authorities and certificates in files of their own are the client's task.
type kubeconfig struct {
	*proxy
	api      *apiSource
	follower *filewatch.Follower

	text  string        // why the file cannot be used
	tried string        // the key of the content that was tried last
	next  time.Time     // when it is tried again
	pause time.Duration // before that
}

// followKubeconfig follows the kubeconfig until ctx ends, if there is one.
func (p *proxy) followKubeconfig(ctx context.Context) error {
	api, is := p.source.(*apiSource)
	if !is || api.client.Connection.Kubeconfig == "" {
		return nil
	}
	return p.newKubeconfig(api).follower.Run(ctx)
}

func (p *proxy) newKubeconfig(api *apiSource) *kubeconfig {
	k := &kubeconfig{proxy: p, api: api}
	k.follower = &filewatch.Follower{
		Path: api.client.Connection.Kubeconfig, Read: api.client.Read, Key: api.key, Changed: k.changed,
		WatchFailed: func(err error) {
			p.log.Info("The kubeconfig is polled, because it cannot be watched", "every", filewatch.FollowInterval, "err", err.Error())
		},
	}
	return k
}

// changed connects as the content says, if it says something else than what is in use.
func (k *kubeconfig) changed(ctx context.Context, c filewatch.Content) error {
	now := time.Now()
	switch {
	case c.Err != nil:
		k.reject(c.Err)
	case c.Key == k.api.key:
		k.accept("The kubeconfig is again the one in use")
	case c.Key == k.tried && now.Before(k.next):
		k.follower.Key = "" // so that a later check comes here again
	default:
		if c.Key != k.tried {
			k.tried, k.pause = c.Key, filewatch.FollowInterval
		}
		k.pause = min(2*k.pause, maxConnectPause)
		k.next = now.Add(k.pause)
		k.connect(ctx, c.Key)
	}
	return nil
}

// connect takes the connection that the file describes if it works.
func (k *kubeconfig) connect(ctx context.Context, key string) {
	to, err := k.api.client.Config()
	if err != nil {
		k.reject(err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := k.api.Use(ctx, to); err != nil {
		text := fmt.Errorf("kubeconfig %s: %s does not work: %w", printable.Text(k.follower.Path), to.Host, err)
		if remedy := k.api.client.Remedy(err); remedy != "" {
			text = fmt.Errorf("%w; %s", text, remedy)
		}
		k.reject(text)
		k.follower.Key = "" // once more, also if it stays as it is
		return
	}
	if err := k.reports.Events.UseAPI(to); err != nil {
		k.log.Error(err, "Events go to the API server before")
	}
	k.api.outages.SetLog(k.log.WithValues("server", to.Host))
	k.api.key, k.api.server = key, to.Host
	k.accept("The kubeconfig changed and is in force; all is listed again")
}

// reject keeps the connection in use.
func (k *kubeconfig) reject(err error) {
	if text := err.Error(); text != k.text {
		k.text = text
		k.reports.Health.SetCondition(condition.Kubeconfig, text)
		k.log.Error(err, "The kubeconfig cannot be used; the connection in use stays, and a new process would not start")
	}
}

func (k *kubeconfig) accept(message string) {
	k.text, k.tried = "", ""
	k.reports.Health.SetCondition(condition.Kubeconfig, "")
	k.log.Info(message, "kubeconfig", k.follower.Path, "server", k.api.server)
}
