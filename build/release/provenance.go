// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"aead.dev/minisign"
	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	// origin is the file that says of what commit, and how, the others were made
	// (https://slsa.dev/spec/v1.1/provenance).
	origin = "provenance.intoto.json"
	// signature is that of the checksums, so it is for all files.
	signature = checksums + ".minisig"
	// passwordVariable has the password of the key.
	passwordVariable = "MINISIGN_PASSWORD"
)

// attest writes the origin of every file.
func attest(_ context.Context, o *options) error {
	files, err := filepath.Glob(filepath.Join(o.out, "*"))
	if err != nil {
		return err
	}
	st := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: "https://slsa.dev/provenance/v1"}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		st.Subject = append(st.Subject, &intoto.ResourceDescriptor{Name: filepath.Base(f), Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}})
	}
	parameters, err := structpb.NewStruct(map[string]any{"target": "release", "version": o.version, "systems": o.systems, "image": o.name})
	if err != nil {
		return err
	}
	source := &intoto.ResourceDescriptor{Name: "source", Uri: o.source}
	if o.revision != "" {
		source.Digest = map[string]string{"gitCommit": o.revision}
	}
	p := &provenance.Provenance{
		BuildDefinition: &provenance.BuildDefinition{
			BuildType: "urn:kubeproxy:make", ExternalParameters: parameters,
			ResolvedDependencies: []*intoto.ResourceDescriptor{source},
		},
		RunDetails: &provenance.RunDetails{Builder: &provenance.Builder{Id: "urn:kubeproxy:build/release", Version: map[string]string{"go": runtime.Version()}}},
	}
	if err := p.Validate(); err != nil {
		return err
	}
	if st.Predicate, err = asStruct(p); err != nil {
		return err
	}
	if err := st.Validate(); err != nil {
		return err
	}
	text, err := protojson.Marshal(st)
	if err != nil {
		return err
	}
	var out bytes.Buffer // protojson varies its spaces
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, origin), append(out.Bytes(), '\n'), 0o644)
}

func asStruct(p *provenance.Provenance) (*structpb.Struct, error) {
	text, err := protojson.Marshal(p)
	if err != nil {
		return nil, err
	}
	s := &structpb.Struct{}
	return s, protojson.Unmarshal(text, s)
}

// sign signs the checksums, if there is a key.
func sign(_ context.Context, o *options) error {
	if o.key == "" {
		fmt.Println("The release is not signed: make release KEY=FILE takes a key of minisign.")
		return nil
	}
	key, err := privateKey(o.key)
	if err != nil {
		return fmt.Errorf("key %s: %w: want one of minisign, and its password in %s", o.key, err, passwordVariable)
	}
	text, err := os.ReadFile(filepath.Join(o.out, checksums))
	if err != nil {
		return err
	}
	about := fmt.Sprintf("kubeproxy %s, commit %s", o.version, o.revision)
	return os.WriteFile(filepath.Join(o.out, signature), minisign.SignWithComments(key, text, about, "signature of "+checksums), 0o644)
}

func privateKey(file string) (key minisign.PrivateKey, err error) {
	text, err := os.ReadFile(file)
	if err == nil && minisign.IsEncrypted(text) {
		return minisign.DecryptKey(os.Getenv(passwordVariable), text)
	}
	if err == nil {
		err = key.UnmarshalText(text)
	}
	return key, err
}

// verify checks the signature of a release, and every file by its checksum.
func verify(_ context.Context, o *options) error {
	key, err := minisign.PublicKeyFromFile(o.key)
	if err != nil {
		return fmt.Errorf("key %s: %w: want a public one of minisign", o.key, err)
	}
	list, err := os.ReadFile(filepath.Join(o.out, checksums))
	if err != nil {
		return err
	}
	signed, err := os.ReadFile(filepath.Join(o.out, signature))
	if err != nil {
		return err
	}
	if !minisign.Verify(key, list, signed) {
		return fmt.Errorf("%s: the signature is not of this key and these checksums", filepath.Join(o.out, signature))
	}
	for _, line := range bytes.Split(bytes.TrimSpace(list), []byte("\n")) {
		want, name, _ := bytes.Cut(line, []byte("  "))
		text, readErr := os.ReadFile(filepath.Join(o.out, filepath.Base(string(name))))
		if errors.Is(readErr, os.ErrNotExist) {
			continue // a user takes what is needed
		}
		sum := sha256.Sum256(text)
		if readErr == nil && hex.EncodeToString(sum[:]) != string(want) {
			readErr = errors.New("is not the file that was signed")
		}
		if readErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, readErr))
			continue
		}
		fmt.Printf("%s: as signed\n", name)
	}
	return err
}
