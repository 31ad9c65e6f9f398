// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

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
