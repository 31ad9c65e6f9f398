// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release makes what is released: images of the program, and with them the
// binaries, what they are made of, and checksums. It is a module of its own, so that what it needs stays
// out of the product's go.mod.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/registry"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"kubeproxy/build/release/chart"
	"kubeproxy/build/release/debian"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// options are the flags of every command.
type options struct {
	binaries string // a folder for each system, such as linux-amd64
	man      string // a folder with the man pages
	plugins  string // a folder with the plugin of kubectl for each system, such as linux-amd64
	systems  string // that images are for, with spaces between them
	out      string
	name     string // of the image, without a tag
	version  string
	revision string
	source   string // where the source is
	key      string // file with the key of minisign, private to sign, public to verify
	created  time.Time

	chart      string // folder
	list       string // of images to pack
	kubeconfig string
	release    string // that render renders
	cache      debian.Cache
}

func run(ctx context.Context, args []string) error {
	commands := map[string]func(context.Context, *options) error{
		"image":     saveImages,
		"chart":     printChart,
		"release":   layOut,
		"pins":      writePins,
		"manifests": writeManifests,
		"render":    printManifest,
		"pack":      packImages,
		"push":      push,
		"verify":    verify,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("want one of the commands image, chart, release, pins, manifests, render, pack, push, verify")
	}
	o := &options{}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.StringVar(&o.binaries, "binaries", "", "folder with a folder for each system, such as linux-amd64, that has the binary")
	flags.StringVar(&o.man, "man", "", "folder with the man pages")
	flags.StringVar(&o.plugins, "plugins", "", "folder with the plugin of kubectl for each system, such as linux-amd64 or windows-amd64.exe")
	flags.StringVar(&o.systems, "systems", "linux-amd64 linux-arm64 windows-amd64", "systems that images are for")
	flags.StringVar(&o.out, "out", "", "folder to write to")
	flags.StringVar(&o.name, "name", "localhost/kubeproxy", "name of the image, with a registry if it is for one")
	flags.StringVar(&o.version, "version", "dev", "version, which becomes the tag")
	flags.StringVar(&o.revision, "revision", "", "commit")
	flags.StringVar(&o.source, "source", "", "address at which the source is public")
	flags.StringVar(&o.key, "key", "", "file with the key of minisign that signs a release, or the public one that verifies it; MINISIGN_PASSWORD has its password")
	flags.StringVar(&o.chart, "chart", filepath.Join("..", "chart"), "folder of the chart")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "cluster that render asks")
	flags.StringVar(&o.release, "release", "", "name of the release that render renders")
	flags.StringVar(&o.list, "list", "", "file with the images that pack makes of folders, as JSON")
	created := flags.String("created", "", "time of every file, in RFC 3339; SOURCE_DATE_EPOCH overrides it")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	var err error
	if o.created, err = creation(*created, os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		return err
	}
	folder, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	o.cache = debian.Cache{Folder: filepath.Join(folder, "kubeproxy", "debian"), Out: os.Stderr}
	return commands[args[0]](ctx, o)
}

// creation returns the time of what is made. It never is the present, see
// https://reproducible-builds.org/specs/source-date-epoch/
func creation(commit, epoch string) (time.Time, error) {
	switch {
	case epoch != "":
		var seconds int64
		if _, err := fmt.Sscanf(epoch, "%d", &seconds); err != nil {
			return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %q: want seconds since 1970", epoch)
		}
		return time.Unix(seconds, 0).UTC(), nil
	case commit != "":
		t, err := time.Parse(time.RFC3339, commit)
		if err != nil {
			return time.Time{}, fmt.Errorf("-created: %w", err)
		}
		return t.UTC(), nil
	}
	return time.Unix(0, 0).UTC(), nil
}

// tag is the version in the characters that a tag may have.
func (o *options) tag() string { return strings.ReplaceAll(o.version, "+", "-") }

// writePins writes the list of Debian's packages anew.
func writePins(ctx context.Context, o *options) error {
	text, err := o.cache.Pin(ctx, linuxArchs...)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "packages.txt"), []byte(text), 0o644)
}

// writeManifests writes what follows from the chart: the kustomize bases, and its README.
func writeManifests(_ context.Context, o *options) error {
	source := &chart.Source{Folder: o.chart}
	files, err := source.Bases()
	if err != nil {
		return err
	}
	readme, err := source.Readme()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.chart, "README.md"), []byte(readme), 0o644); err != nil {
		return err
	}
	for name, text := range files {
		file := filepath.Join(o.out, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// printManifest prints what helm template would, for the values on standard input. With
// a kubeconfig the chart asks the cluster, as helm install does.
func printManifest(_ context.Context, o *options) error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		return fmt.Errorf("values: %w", err)
	}
	s := &chart.Source{Folder: o.chart, Release: o.release}
	if o.kubeconfig != "" {
		if s.Cluster, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig); err != nil {
			return err
		}
	}
	manifest, err := s.Manifest(values)
	if err != nil {
		return err
	}
	_, err = fmt.Print(manifest)
	return err
}

// push writes the images and the chart to the registry in the name of the image. With an image it pushes what it is
// made of, which refers to it. Who may write is what docker login and helm registry login know.
func push(ctx context.Context, o *options) error {
	first, err := name.NewTag(o.name + ":" + o.tag())
	if err != nil {
		return err
	}
	if first.RegistryStr() == "localhost" {
		return fmt.Errorf("%s names no registry: want make push IMAGE=HOST/TEAM/kubeproxy", o.name)
	}
	for _, v := range o.variants() {
		tag, err := name.NewTag(o.name + v.suffix + ":" + o.tag())
		if err != nil {
			return err
		}
		built, err := v.build(ctx, o)
		if err != nil {
			return fmt.Errorf("image %s: %w", v.about.Title, err)
		}
		if err := remote.WriteIndex(tag, built.index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("push %s: %w", tag, err)
		}
		digest, err := built.index.Digest()
		if err != nil {
			return err
		}
		fmt.Printf("%s@%s\n", tag, digest)
	}
	return o.pushChart(first)
}

// pushChart writes the chart beside the images. Its name is that of the image, so it has a folder of its own.
func (o *options) pushChart(image name.Tag) error {
	_, text, err := o.ofImages().Pack(o.created)
	if err != nil {
		return err
	}
	c, err := loader.LoadArchive(bytes.NewReader(text))
	if err != nil {
		return err
	}
	var options []registry.ClientOption
	if image.Scheme() == "http" {
		options = append(options, registry.ClientOptPlainHTTP())
	}
	client, err := registry.NewClient(options...)
	if err != nil {
		return err
	}
	at := image.Repository.Name()
	at = at[:strings.LastIndex(at, "/")] + "/charts/" + c.Name()
	if _, err := client.Push(text, at+":"+c.Metadata.Version, registry.PushOptCreationTime(o.created.Format(time.RFC3339))); err != nil {
		return fmt.Errorf("push the chart: %w", err)
	}
	fmt.Printf("oci://%s --version %s\n", at, c.Metadata.Version)
	return nil
}
