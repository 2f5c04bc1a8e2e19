package config

// Dnstap is the section dnstap: what was asked and answered, for other programs. Off where neither file nor socket is given.
type Dnstap struct {
	// File is written anew at each start; the one before is renamed to end in .1.
	File string `mapstructure:"file" as:"path"`
	// Socket is where a collector listens: the absolute path of a unix socket, or host:port.
	Socket string `mapstructure:"socket" as:"socket"`
	// Share is the share of queries told of. 0 to 1, default 1.
	Share float64 `mapstructure:"share" default:"1" min:"0" max:"1"`
}
