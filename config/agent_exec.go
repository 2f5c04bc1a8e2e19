package config

import "time"

// AgentExec is one program that gslb-agent runs for every report, which prints what it knows.
type AgentExec struct {
	// Command is the program's absolute path and its arguments, at most 64. No shell reads it, and PATH is not searched.
	// Required.
	Command []string `mapstructure:"command" required:"true" as:"argument" size:"64" repeat:"true"`
	// Timeout bounds one run; then the program is killed, with all that it started. 100ms to 30s, default 2s.
	Timeout time.Duration `mapstructure:"timeout" default:"2s" min:"100ms" max:"30s"`
}

// checkExec refuses programs that would have to be searched for.
func (d *decoder) checkExec(a *Agent) {
	for i, x := range a.Exec {
		path := at("exec", i) + ".command"
		if len(x.Command) > 0 && (x.Command[0] == "" || x.Command[0][0] != '/') && !d.failed[path] {
			d.fail(path, "%s is not the absolute path of a program", quote(x.Command[0]))
		}
	}
}
