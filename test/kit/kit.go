// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kit is what tests of many packages share: waiting for what must happen, the log
// and the Events of a test, golden files, sessions and tables in documents.
package kit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/document"
)

// MayHarm returns whether a command ends a program, or removes or opens something of others, so
// that nobody should run it unread.
func MayHarm(command string) bool {
	return regexp.MustCompile(`\b(kill|taskkill|umount|stop|restart|disable|disabled|delete|flush|rm|cleanup|update-alternatives)\b| -[DFPX] |policy accept`).MatchString(command)
}

// Block is what a page has in one indented block.
type Block struct {
	Section string // its heading
	About   string // the paragraph before it
	Text    string
}

// Blocks returns the blocks of a page. One begins after a blank line, further to the right
// than the text of any list.
func Blocks(page string) []Block {
	var all []Block
	section, about, blank := "", "", true
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		switch {
		case strings.HasPrefix(line, "## "), strings.HasPrefix(line, "### "):
			section = strings.TrimLeft(line, "# ")
		case blank && indent(line) >= 4:
			text, n := cut(lines[i:])
			all = append(all, Block{section, about, text})
			i += n - 1
		case line == "":
		case blank:
			about = line
		default:
			about += "\n" + line
		}
		blank = lines[i] == ""
	}
	return all
}

// cut returns the block at the begin of lines, and how many lines it has.
func cut(lines []string) (text string, n int) {
	margin := indent(lines[0])
	for i, line := range lines {
		switch {
		case line == "":
		case indent(line) < margin:
			return text, n
		default:
			text += strings.Repeat("\n", i-n) + line[margin:] + "\n"
			n = i + 1
		}
	}
	return text, n
}

func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// Program returns the program that a block runs first, if it is a script.
func (b Block) Program() string {
	word, _, _ := strings.Cut(strings.TrimSpace(b.Text), " ")
	if _, value, ok := strings.Cut(word, "=$("); ok { // a variable
		word = value
	}
	return filepath.Base(word)
}

// EventSink is the transport to an API server in memory that accepts every Event. The zero
// value is ready.
type EventSink struct {
	mu      sync.Mutex
	written []EventRequest
}

// EventRequest is one that wrote an Event.
type EventRequest struct {
	Method string // POST creates an Event, PATCH counts it once more
	Event  corev1.Event
	Body   string
}

// RoundTrip implements http.RoundTripper.
func (s *EventSink) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	q := EventRequest{Method: r.Method, Body: string(body)}
	if err := json.Unmarshal(body, &q.Event); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = append(s.written, q)
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}, nil
}

// Written returns the requests so far, in order.
func (s *EventSink) Written() []EventRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]EventRequest(nil), s.written...)
}

// paths are what follows the name of a folder.
var paths = regexp.MustCompile(`DIR(\\[^\\\s:;"',]+)+`)

// systemTexts of Windows and of Wine, and those of Linux.
var systemTexts = strings.NewReplacer(
	"GetFileAttributesEx ", "stat ",
	"CreateFile ", "stat ",
	"The system cannot find the file specified.", "no such file or directory",
	"The system cannot find the path specified.", "no such file or directory",
	"File not found.", "no such file or directory",
	"Path not found.", "no such file or directory",
)

// Normalize makes what a program prints the same on every system, so that tests compare it
// with one text: DIR for the name of a folder, in JSON too, and one set of words for a file
// that is not there. It changes nothing else.
func Normalize(text, dir string) string {
	text = strings.ReplaceAll(text, dir, "DIR")
	text = strings.ReplaceAll(text, strings.ReplaceAll(dir, `\`, `\\`), "DIR") // as JSON has it
	text = paths.ReplaceAllStringFunc(text, func(path string) string { return strings.ReplaceAll(path, `\`, "/") })
	return systemTexts.Replace(text)
}

// CompareGolden requires that got is the text of a golden file.
func CompareGolden(t testing.TB, path, got string) {
	t.Helper()
	Same(t, path+" (-want +got)", string(ReadFile(t, path)), got)
}

// CheckWidth requires that no line of text is too long for a terminal, and that text has
// each of names, in however many lines.
func CheckWidth(t testing.TB, text string, names ...string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > document.Width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, name := range names {
		if !hasPieces(text, name) {
			t.Errorf("%s is not there in full:\n%s", name, text)
		}
	}
}

// hasPieces reports whether the letters of name stand in text one after another, perhaps
// in pieces with other columns between them.
func hasPieces(text, name string) bool {
	for name != "" {
		n := len(name)
		for n > 0 && !strings.Contains(text, name[:n]) {
			n--
		}
		if n == 0 {
			return false
		}
		at := strings.Index(text, name[:n])
		text, name = text[at+n:], name[n:]
	}
	return true
}

// NewLog returns a logger with lines up to a level, and the buffer it writes to.
func NewLog(level int) (klog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&b), textlogger.Verbosity(level))), &b
}

// LogLines returns the log lines, each as its severity and its message: "I Programmed".
func LogLines(b *bytes.Buffer) []string {
	var all []string
	for line := range strings.Lines(b.String()) {
		_, text, _ := strings.Cut(line, "] ")
		all = append(all, line[:1]+" "+strings.TrimSpace(text))
	}
	return all
}

// Must fails the test if one of errs is not nil.
func Must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Check fails the test unless ok, and lets it go on.
func Check(t testing.TB, ok bool, format string, args ...any) {
	if !ok {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// Need is Check for what the rest of the test needs: it ends the test.
func Need(t testing.TB, ok bool, format string, args ...any) {
	if !ok {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// Equal fails the test where got, which the text names, is not what was wanted.
func Equal[V comparable](t testing.TB, got, want V, format string, args ...any) {
	if got != want {
		t.Helper()
		t.Errorf("%s = %#v, want %#v", fmt.Sprintf(format, args...), got, want)
	}
}

// Same fails the test where got is not what was wanted, or not what was there before. The
// title says which sign has which: "tally (-want +got)".
func Same(t testing.TB, title string, want, got any, o ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, o...); diff != "" {
		t.Errorf("%s:\n%s", title, diff)
	}
}

// ReadFile returns the content of a file.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	Must(t, err)
	return text
}

// WriteFile makes text the content of a file, which only its owner may read and write.
func WriteFile(t testing.TB, path, text string) {
	t.Helper()
	Must(t, os.WriteFile(path, []byte(text), 0o600))
}

// Nightly returns whether tests have hours: KUBEPROXY_NIGHTLY is set.
func Nightly() bool { return os.Getenv("KUBEPROXY_NIGHTLY") != "" }

// Limit bounds the wait for anything that must happen, with the race detector on a busy
// machine. Only a fault makes a test wait that long.
const Limit = 2 * time.Minute

// Until polls until ok, and fails the test if that takes longer than Limit.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Soon(ok) {
		t.Fatalf("waited %s in vain: %s", Limit, what)
	}
}

// Soon returns whether ok became true within Limit. It asks every two milliseconds, then less
// and less often: a question can cost more than what it waits for, above all where the
// processor is emulated.
func Soon(ok func() bool) bool {
	for begin := time.Now(); !ok(); {
		waited := time.Since(begin)
		if waited > Limit {
			return false
		}
		time.Sleep(min(max(2*time.Millisecond, waited/8), 100*time.Millisecond))
	}
	return true
}

// Session is what a user types and sees.
type Session struct {
	Name   string // as in the mark of the page: <!-- session NAME -->
	Prompt string // before what is typed
	Status string // a command that prints the exit code, as the shell has it
	text   strings.Builder
}

// Typed adds a line that was typed, what was printed, and the exit code.
func (s *Session) Typed(line, out string, code int) {
	s.shows(s.Prompt + " " + line)
	for l := range strings.Lines(out) {
		s.shows(strings.TrimRight(l, " \n\t"))
	}
	s.shows(s.Prompt + " " + s.Status)
	s.shows(fmt.Sprint(code))
}

func (s *Session) shows(line string) { s.text.WriteString(strings.TrimRight("    "+line, " ") + "\n") }

// Page is a document that shows sessions.
type Page struct {
	Path    string
	Rewrite bool // in place of requiring that it is as it should be
}

// Compare requires that the page shows all sessions as they are, or rewrites them.
func (p Page) Compare(t *testing.T, all ...*Session) {
	t.Helper()
	text := ReadFile(t, p.Path)
	now, err := string(text), error(nil)
	for _, s := range all {
		if now, err = replace(now, s); err != nil {
			t.Fatalf("%s %v", p.Path, err)
		}
	}
	diff := cmp.Diff(string(text), now)
	switch {
	case diff == "":
	case !p.Rewrite:
		t.Errorf("%s shows something else; -update-insight rewrites it (-page +session):\n%s", p.Path, diff)
	default:
		Must(t, os.WriteFile(p.Path, []byte(now), 0o644))
	}
}

// replace puts the text of s behind its mark, in the place of the block there.
func replace(page string, s *Session) (string, error) {
	mark := "<!-- session " + s.Name + " -->\n"
	before, after, found := strings.Cut(page, mark)
	if !found {
		return "", fmt.Errorf("lacks %s", mark)
	}
	rest := strings.TrimLeft(after, "\n")
	for strings.HasPrefix(rest, "    ") || strings.HasPrefix(rest, "\n") {
		_, rest, _ = strings.Cut(rest, "\n")
	}
	return before + mark + "\n" + s.text.String() + "\n" + rest, nil
}

// Table returns a table of a page in docs. Its columns are aligned in the source, too. The
// first row has the titles, and every other one as many cells.
func Table(rows [][]string) string { return table(rows, len(rows[0])) }

// Numbers is a Table in which all columns but the first are flush right.
func Numbers(rows [][]string) string { return table(rows, 1) }

// table puts the columns from the one with index right on flush right.
func table(rows [][]string, right int) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			// A ruler of a column that is flush right has at least a dash and a colon.
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 2)
		}
	}
	var out strings.Builder
	for n, row := range rows {
		for i, cell := range row {
			width := -widths[i]
			if i >= right {
				width = widths[i]
			}
			fmt.Fprintf(&out, "| %*s ", width, cell)
		}
		out.WriteString("|\n")
		if n == 0 {
			out.WriteString(ruler(widths, right))
		}
	}
	return out.String()
}

func ruler(widths []int, right int) string {
	var out strings.Builder
	for i, w := range widths {
		dashes := strings.Repeat("-", w+1)
		if i >= right {
			out.WriteString("|" + dashes + ":")
		} else {
			out.WriteString("|" + dashes + "-")
		}
	}
	return out.String() + "|\n"
}
