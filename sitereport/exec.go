package sitereport

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ExecOptions configure an Exec reader.
type ExecOptions struct {
	// Command is the program's absolute path and its arguments. No shell reads it, and PATH is not searched.
	Command []string

	Site, Agent string        // of the report; the program finds them in GSLB_SITE and GSLB_AGENT
	Timeout     time.Duration // for one run; default 2s
}

// An Exec runs a program for every reading. What it prints is JSON: load, virtual_servers and warnings as in a report
// (docs/agent.md), with the same bounds.
//
// The program has no input, the directory / and an environment of PATH, LANG, GSLB_SITE and GSLB_AGENT, and is the leader
// of a process group of its own, which is killed when it takes too long or prints too much. Whatever is not a whole
// answer and exit status 0 is a failed reading.
//
// One that prints no virtual servers supplies the load that it prints for those of others. It is for one reader at a time.
type Exec struct {
	program program // fixed at construction

	// Owned by Read: what the last good reading was of.
	known    []VirtualServer // with servers of any state
	supplies Figures
}

// NewExec returns a reader. It fails when the command is not an absolute path.
func NewExec(o ExecOptions) (*Exec, error) {
	if len(o.Command) == 0 || !strings.HasPrefix(o.Command[0], "/") {
		return nil, errors.New("exec: the command does not begin with the absolute path of a program")
	}
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Second
	}
	return &Exec{supplies: AllFigures, program: program{
		command: o.Command, timeout: o.Timeout, most: MaxReport, // no more fits into a report
		environment: []string{"LANG=C.UTF-8", "GSLB_SITE=" + o.Site, "GSLB_AGENT=" + o.Agent},
	}}, nil
}

// Read runs the program once.
func (x *Exec) Read(ctx context.Context) (Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, x.program.timeout)
	defer cancel()
	output, complaint, err := x.program.run(ctx)
	if err == nil {
		var r Reading
		if r, err = parseExec(output); err == nil {
			x.known, x.supplies = r.VirtualServers, r.Supplies
			return r, nil
		}
		err = fmt.Errorf("what it printed: %w", err)
	}
	if complaint != "" {
		err = fmt.Errorf("%w: %s", err, complaint)
	}
	err = fmt.Errorf("exec %s: %w", x.program.command[0], err)
	r := Reading{Supplies: x.supplies}
	for _, v := range x.known {
		v.Sessions, v.Servers = nil, unknownServers(v.Servers, err.Error())
		r.VirtualServers = append(r.VirtualServers, v)
	}
	return r, err
}

// parseExec reads what a program printed.
func parseExec(output []byte) (r Reading, err error) {
	d := decoder{text: string(output)}
	if err = d.reading(&r); err == nil {
		err = d.end()
	}
	known := r.Load.figures()
	switch {
	case err != nil:
		return Reading{}, err
	case len(r.VirtualServers) > 0:
		r.Yields = AllFigures &^ known
	case known == 0:
		return Reading{}, errors.New("neither load nor virtual_servers are in it")
	default:
		r.Supplies = known
	}
	return r, nil
}
