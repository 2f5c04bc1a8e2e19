package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// An Error is one fault of a configuration.
type Error struct {
	File string // as given to Load; "environment NAME" where a variable is at fault
	Line int    // 1-based; 0: the whole file, or a variable
	Path string // such as services[2].members[0].site; empty: the whole file
	Msg  string // what is wrong and what to do
}

// Error returns "FILE:LINE: PATH: MESSAGE", without what is not known.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Path != "" {
		b.WriteString(": " + e.Path)
	}
	b.WriteString(": " + e.Msg)
	return b.String()
}

// Errors are all the faults of a configuration, in the order of the file.
type Errors []*Error

// Error returns one fault a line. Beyond 100 it only says how many more there are.
func (e Errors) Error() string {
	const most = 100 // nobody reads more, and a hostile file must not fill a log
	var b strings.Builder
	for i, err := range e {
		if i == most {
			fmt.Fprintf(&b, "\n(and %d more)", len(e)-most)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(err.Error())
	}
	return b.String()
}

// Unwrap returns the single faults.
func (e Errors) Unwrap() []error {
	out := make([]error, len(e))
	for i, err := range e {
		out[i] = err
	}
	return out
}

func (e Errors) sort() {
	// Faults of the environment have no line and come last, faults of the whole file first.
	slices.SortStableFunc(e, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Line, b.Line))
	})
}

func rank(e *Error) int {
	if strings.HasPrefix(e.File, "environment ") {
		return 1
	}
	return 0
}
