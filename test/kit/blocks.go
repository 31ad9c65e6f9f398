// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"path/filepath"
	"strings"
)

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
